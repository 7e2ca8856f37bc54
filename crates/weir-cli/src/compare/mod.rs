//! A comparison: the same program natively, under the kernel's own swap, and under Weir.

mod area;
pub mod numbers;
mod relief;
pub mod rival;
pub mod sides;
pub mod table;
mod undo;
