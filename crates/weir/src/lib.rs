//! The Weir engine: how a page lives between RAM, a compressed pool and (later) a swap file.
//!
//! A page comes in by `fault`, goes out by `reclaim`; the two meet only in the page table and the
//! frame arena. Everything that touches the kernel or raw memory is behind `door`.

#![deny(unsafe_code)]

#[cfg(not(loom))]
pub mod admission;
pub mod config;
#[cfg(not(loom))]
pub mod demand;
pub mod door;
#[cfg(not(loom))]
pub mod engine;
#[cfg(not(loom))]
pub mod error;
#[cfg(not(loom))]
pub mod fault;
#[cfg(not(loom))]
pub mod frames;
pub mod limits;
#[cfg(all(test, loom))]
mod loom_models;
/// How much time the program has for itself.
pub mod meter;
pub mod page;
#[cfg(not(loom))]
pub mod policy;
#[cfg(not(loom))]
pub mod reclaim;
#[cfg(not(loom))]
pub mod shared;
#[cfg(all(test, not(loom)))]
mod sim;
#[cfg(not(loom))]
pub mod stats;
pub mod sync;
#[cfg(not(loom))]
pub mod tier;
#[cfg(not(loom))]
pub mod trials;
