//! What the binaries `weir` and `weir-bench` share: children, signals, the library, and comparisons with the
//! kernel's own swap.

pub mod child;
pub mod compare;
pub mod exit;
pub mod interrupt;
pub mod preload;
pub mod term;
