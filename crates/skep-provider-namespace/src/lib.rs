//! The namespace provider: sandboxes held by a keeper on this host.
