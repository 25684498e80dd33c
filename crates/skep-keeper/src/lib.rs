//! The process that holds one running sandbox: namespaces, view, init, execs, logs.
