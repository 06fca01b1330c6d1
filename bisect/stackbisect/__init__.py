"""stackbisect: finds the smallest part of a software stack that changed a run's bits."""
