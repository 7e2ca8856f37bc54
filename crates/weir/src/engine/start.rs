//! Start: address space, arena, tables, userfaultfd, threads.

use super::{Engine, base, swapfile};
use crate::config::rules::{self, Rule, is_on};
use crate::config::{Codec, Cold, Faults, Pager as PagerKind, Settings};
use crate::error::StartError;
use crate::limits::{BUDGET_BYTES_MIN, LIFT_WINDOWS_MAX, RECOMPRESS_BUDGET_MIN};
use crate::page::id::BLOCK_PAGES;
use crate::reclaim::compress::Workbench;
use crate::shared::{Core, Geometry};
use crate::sync::Ordering;
use weir_os::mem::{Mapping, PAGE_BYTES};
use weir_os::pager::{Intake, KernelPager, Transfer};
use weir_os::sys::Errno;
use weir_os::uffd::Uffd;

/// Whether pages will travel without userfaultfd: if that is asked for, or nothing else can be had.
pub fn wants_segv(settings: &Settings) -> bool {
    match settings.pager {
        PagerKind::Segv => true,
        PagerKind::Auto => {
            settings.faults != Faults::Thread && Uffd::is_refused() && KernelPager::can_guard().is_ok()
        }
        PagerKind::Move | PagerKind::Copy => false,
    }
}

impl Engine<KernelPager> {
    /// Builds an engine; its threads are started by the caller, who owns the `'static` reference.
    pub fn start(settings: &Settings, intake: Intake) -> Result<Engine<KernelPager>, StartError> {
        let budget = settings.memory;
        if budget < BUDGET_BYTES_MIN {
            return Err(StartError::BudgetTooSmall(budget));
        }
        rules::leave_out(settings.rules_off);
        let windows = Geometry::arena_windows(budget);
        let guarded = settings.pager == PagerKind::Segv;
        let lift_windows = if lifts(settings, intake) { windows.min(LIFT_WINDOWS_MAX) } else { 0 };
        let window_bytes = BLOCK_PAGES as usize * PAGE_BYTES;
        let arena_len = (windows + lift_windows) as usize * window_bytes;
        let (space, gate) = base::reserve(settings, intake, arena_len)?;
        let arena = Mapping::anon(arena_len).map_err(StartError::AddressSpace)?;
        space.name(c"weir-space");
        arena.name(c"weir-arena");
        let geometry = Geometry {
            pages: (space.len() / PAGE_BYTES) as u32,
            windows,
            lift_windows,
            budget_bytes: budget,
            pool_max_percent: u32::from(settings.pool_max_percent),
        };
        let base = space.base();
        let pager = KernelPager::open_over(
            transfer(settings.pager),
            intake,
            space,
            arena,
            lift_windows as usize * window_bytes,
        )
        .map_err(|e| no_pager(guarded, e))?;
        let way = if pager.is_guarded() { 2 } else { u64::from(!pager.moves()) };
        let mut core = Core::new(pager, geometry, seed(), settings.codec)?;
        if let Some(setting) = &settings.swap {
            match swapfile::open(setting, settings.policy, budget) {
                Ok(swapping) => core.attach_swap(swapping),
                // One that was to size itself is a help, not a condition: the disk may have filled up since
                // the start.
                Err(e) if setting.bytes.is_none() && !settings.embedded => super::say::say(format_args!(
                    "no swap file: {e}; what does not fit in RAM and pool will be refused"
                )),
                Err(e) => return Err(StartError::Swap(e)),
            }
        }
        core.unmap_batch = settings.unmap_batch.into();
        core.store_batch = settings.store_batch.into();
        core.answers_loads = settings.answers_loads;
        core.swappiness = settings.swappiness.into();
        core.balance_by_room = settings.balance_by_room;
        core.cold = match settings.cold {
            _ if settings.codec != Codec::Auto || !weir_os::codec::zstd::contexts_fit() => Cold::Keep,
            Cold::Recompress if budget < RECOMPRESS_BUDGET_MIN => Cold::Keep,
            cold => cold,
        };
        core.room.frames.set_scatter(!settings.frames_in_order || !is_on(Rule::FrameOrder));
        core.stats.pager.store(way, Ordering::Relaxed);
        let engine = Engine::new(core, base);
        engine.keep_gate(gate);
        engine.begin_at(base::first_block(geometry.pages));
        engine.measure_outside(settings);
        engine.watch_limit(settings);
        if let Some(path) = settings.tree.as_deref().filter(|_| settings.per_tree) {
            engine.join_tree(path, budget)?;
        }
        Ok(engine)
    }

    /// Memory for a thread's workbench that is never given back.
    pub fn workbench() -> Box<Workbench> {
        Box::new(Workbench::new())
    }
}

/// Whether page tables may be moved. With handler threads MOVE's refusal of pages that the kernel is using is
/// needed: no pins there. Nor are there any of buffers that a ring made before the filter was there goes on
/// using, nor in pools, which have no filter. Without userfaultfd a lift would leave pages without guards.
fn lifts(settings: &Settings, intake: Intake) -> bool {
    settings.pager != PagerKind::Segv
        && intake == Intake::InThread
        && !settings.embedded
        && weir_os::mem::can_lift()
        && !weir_os::sys::has_io_uring()
}

/// Why there is no pager, with guards or with a userfaultfd.
fn no_pager(guarded: bool, e: Errno) -> StartError {
    match (guarded, e) {
        (true, Errno::ENOMEM) => StartError::Memory(e),
        (true, _) => StartError::Guards(e),
        (false, _) => StartError::Userfaultfd(e),
    }
}

fn transfer(pager: PagerKind) -> Transfer {
    match pager {
        PagerKind::Auto => Transfer::Auto,
        PagerKind::Move => Transfer::Move,
        PagerKind::Copy => Transfer::Copy,
        PagerKind::Segv => Transfer::Segv,
    }
}

/// A seed that a program cannot guess, for the content hash.
fn seed() -> u64 {
    let mut bytes = [0u8; 8];
    if weir_os::sys::random(&mut bytes).is_err() {
        // Early in boot: the clock is better than a constant.
        return weir_os::thread::now_ns();
    }
    u64::from_ne_bytes(bytes)
}
