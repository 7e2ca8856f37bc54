//! Rules that mechanism carries out: what each does, and what is done without it ([`crate::config::rules`]).

use super::compress::{Form, Workbench, compress};
use super::recompress::work;
use super::tests::{core, enter, fill_block, lifting_core, store, streamed};
use super::unmap::unmap;
use crate::config::rules::{Rule, without};
use crate::config::{Codec as Setting, Cold};
use crate::demand::Demand;
use crate::limits::{EPOCH_FAULTS, STUCK_PROBE, THROUGH_LOOK_NS};
use crate::page::BlockId;
use crate::shared::Core;
use crate::sim::disk::FakeDisk;
use crate::sim::{FakePager, World};
use crate::sync::Ordering;
use crate::tier::pool::Codec;

#[test]
fn without_its_share_nothing_is_staged_ahead_and_without_its_neighbours_a_block_leaves_alone() {
    let core = core();
    assert!(core.room.staged_mark() > 0);
    assert_eq!(without(Rule::StagedShare, || core.room.staged_mark()), 0);
    let lifted = || {
        let core = lifting_core();
        (0..4).for_each(|b| fill_block(&core, b, |_, p| p.fill(1)));
        unmap(&core, BlockId(1));
        core.validate(1024).unwrap();
        core.staged.blocks()
    };
    assert_eq!((lifted(), without(Rule::LiftNeighbours, lifted)), (4, 1));
}

#[test]
fn without_two_blocks_a_stream_brings_the_one_that_it_enters() {
    let there = || {
        let (_, first, second) = enter(&streamed(), 0);
        (first, second)
    };
    assert_eq!((there(), without(Rule::TwoBlocks, there)), ((64, 64), (64, 0)));
}

#[test]
fn copies_are_kept_where_they_stay_true_or_always_or_never() {
    let core = core();
    let kept = |core: &Core<FakePager>| {
        (0..64).filter(|_| core.copies.keeps_records(&core.room, &core.stats, 64)).count()
    };
    assert_eq!((kept(&core), without(Rule::KeptRecords, || kept(&core))), (64, 0));
    (0..10).for_each(|_| core.copies.kept_was(false));
    assert!(kept(&core) < 10);
    assert_eq!(without(Rule::KeptScore, || kept(&core)), 64);
    let swaps = World::budget(8).swap(FakeDisk::new(8 << 20, 512), 8 << 20).core();
    assert!(swaps.copies.keeps_slots() && !without(Rule::KeptSlots, || swaps.copies.keeps_slots()));
}

#[test]
fn numbers_are_shuffled_or_compressed_as_all_else_is() {
    let mut page = [0; 4096];
    for (i, word) in page.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(1_000_000 + i as u64 * 12_345).to_le_bytes());
    }
    let codec = || match compress(&mut Workbench::new(), 0, Setting::Auto, &page) {
        Form::Record(codec, _) => Some(codec),
        _ => None,
    };
    assert_eq!(codec(), Some(Codec::ShuffleLz4));
    assert_ne!(without(Rule::Shuffle, codec), Some(Codec::ShuffleLz4));
}

#[test]
fn pages_that_did_not_compress_are_passed_over_or_tried_every_time() {
    // Pages in no order, which go to the swap file twice.
    let untried = || {
        let core = World::budget(8).swap(FakeDisk::new(8 << 20, 512), 8 << 20).core();
        let mut workbench = Workbench::new();
        for round in 0..2_u64 {
            fill_block(&core, 0, |i, p| {
                let mut seed = u64::from(i) + 1 + (round << 32);
                p.iter_mut().for_each(|b| {
                    seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                    *b = (seed >> 56) as u8;
                });
            });
            unmap(&core, BlockId(0));
            while let Some(block) = core.staged.pop() {
                store(&core, &mut workbench, block);
            }
        }
        core.validate(1024).unwrap();
        core.stats.out_untried.load(Ordering::Relaxed)
    };
    assert!(untried() > 64 - 64 * 3 / u64::from(STUCK_PROBE));
    assert_eq!(without(Rule::StuckUntried, untried), 0);
}

#[test]
fn cold_records_are_left_alone_without_their_walk() {
    let mut core = core();
    core.cold = Cold::Recompress;
    assert!(work(&core, THROUGH_LOOK_NS).is_some());
    assert_eq!(without(Rule::Recompress, || work(&core, THROUGH_LOOK_NS)), None);
}

#[test]
fn faulting_threads_make_room_and_take_turns_or_leave_both_to_others() {
    let demand = Demand::with_processors(1);
    let faults = (0..3 * EPOCH_FAULTS).flat_map(|n| (0..2_usize).map(move |thread| (thread, n)));
    faults.for_each(|(thread, n)| demand.note_faulter(thread << 12, n));
    (0..8).for_each(|_| demand.note(1));
    assert!(demand.wants_credit() && demand.crowded() && demand.queued());
    assert!(!without(Rule::OwnRoom, || demand.crowded()));
    assert!(!without(Rule::Turns, || demand.queued()));
    assert!(!without(Rule::SingleCopies, || demand.wants_credit()));
    (0..8).for_each(|_| demand.note(64));
    assert!(demand.streams_crowd());
    assert!(!without(Rule::StreamRoom, || demand.streams_crowd()));
}
