//! Everything that decides, as pure functions: what was seen goes in, an answer comes out. No file here calls
//! the kernel, takes a lock or touches memory; mechanism asks and matches on the answer. All numbers are in
//! [`crate::limits`].

pub mod admission;
pub mod files;
pub mod placement;
pub mod pool_size;
pub mod readahead;
pub mod recompress;
#[cfg(test)]
mod rules_tests;
pub mod tree;
pub mod victims;
pub mod write_through;
