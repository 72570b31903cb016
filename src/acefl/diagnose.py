"""Moved to `acefl.studies.diagnose`; this path still works."""

from acefl.studies.diagnose import diagnose as diagnose
