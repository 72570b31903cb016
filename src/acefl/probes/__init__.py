"""What a run's updates are made of, measured while it runs and without changing it.

Observers for `simulate(..., observers=[...])`: `ErrorTerms` measures the paper's sampling noise, participation bias and
delay error of single steps; `Participation` follows whose updates make up the model, and how stale they were;
`TrueGradient` adds the norm of the true gradient to every evaluation.
"""

from acefl.probes.error_terms import ErrorTerms
from acefl.probes.participation import Participation
from acefl.probes.true_gradient import TrueGradient

__all__ = ["ErrorTerms", "Participation", "TrueGradient"]
