//! Limits and fences: cgroups, seccomp, Landlock, capabilities, rlimits, and the probes that tell which hold.
