"""The stages of a bisection, one file each; `chain` says which comes next."""
