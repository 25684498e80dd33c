//! Isolation and limits, asked from inside, with control runs.
