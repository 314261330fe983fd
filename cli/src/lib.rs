//! The programs of Tensora share this crate: arguments, reports and exit codes.
