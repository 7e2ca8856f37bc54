//! Finds nearest neighbours among vectors that may be larger than RAM: `neighbours MEMORY VECTORS`.
//!
//! Every query passes over all vectors, with a thread for each processor. Passes in order are what a pool is
//! good at: pages are fetched ahead of each thread.

use std::num::NonZero;
use std::thread;
use weir::{Advice, AllocError, Pool, WeirVec};

/// Numbers of a vector.
const DIM: usize = 64;
type Vector = [f32; DIM];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [memory, count] = &words[..] else {
        eprintln!("usage: neighbours MEMORY VECTORS, for example: neighbours 64MiB 500000");
        std::process::exit(2);
    };
    let pool = Pool::builder().memory(memory.as_str()).build()?;
    let vectors = made_up(&pool, count.parse()?)?;
    let wanted = vectors.len() / 3;
    let query: Vector = vectors[wanted];
    for (distance, at) in nearest(&vectors, &query, 5) {
        println!("{at}: {distance:.3}");
    }
    let stats = pool.stats();
    eprintln!("{} MiB of vectors in {} MiB of RAM", stats.data >> 20, stats.ram >> 20);
    Ok(())
}

/// So many vectors, each with numbers of its own.
fn made_up(pool: &Pool, count: usize) -> Result<WeirVec<Vector>, AllocError> {
    let mut vectors = WeirVec::new(pool);
    let mut state = 1u64;
    for _ in 0..count {
        vectors.push(core::array::from_fn(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 24) as f32
        }))?;
    }
    if let Some(region) = vectors.region() {
        region.advise(.., Advice::Sequential).map_err(|_| AllocError::Empty)?;
    }
    Ok(vectors)
}

/// The `k` vectors that are nearest to `query`, nearest first, with the squares of their distances.
fn nearest(vectors: &[Vector], query: &Vector, k: usize) -> Vec<(f32, usize)> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let part = vectors.len().div_ceil(threads).max(1);
    let mut found: Vec<(f32, usize)> = thread::scope(|scope| {
        let parts = vectors.chunks(part).enumerate().map(|(n, vectors)| {
            scope.spawn(move || {
                let mut best = Vec::new();
                for (i, vector) in vectors.iter().enumerate() {
                    insert(&mut best, (distance(vector, query), n * part + i), k);
                }
                best
            })
        });
        let running: Vec<_> = parts.collect();
        running.into_iter().flat_map(|thread| thread.join().expect("a thread that only reads")).collect()
    });
    found.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    found.truncate(k);
    found
}

/// Keeps the `k` smallest.
fn insert(best: &mut Vec<(f32, usize)>, one: (f32, usize), k: usize) {
    if best.len() == k && best.last().is_some_and(|last| one.0 >= last.0) {
        return;
    }
    let at = best.partition_point(|other| other.0 <= one.0);
    best.insert(at, one);
    best.truncate(k);
}

fn distance(a: &Vector, b: &Vector) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_of_vectors_of_three_budgets_are_found_within_one() {
        const COUNT: usize = (48 << 20) / size_of::<Vector>();
        let pool = Pool::builder().memory("16MiB").build().unwrap();
        let mut vectors = made_up(&pool, COUNT).unwrap();
        let query = [0.5; DIM];
        let near =
            |step: usize| core::array::from_fn(|i| if i == 0 { 0.5 + step as f32 / 100.0 } else { 0.5 });
        for (step, at) in [COUNT - 1, 0, COUNT / 2].into_iter().enumerate() {
            vectors[at] = near(step);
        }
        let found: Vec<usize> = nearest(&vectors, &query, 3).into_iter().map(|(_, at)| at).collect();
        assert_eq!(found, [COUNT - 1, 0, COUNT / 2]);
        assert!(pool.stats().ram <= 16 << 20, "{:?}", pool.stats());
        assert_eq!(nearest(&vectors[..2], &query, 5).len(), 2);
        assert!(nearest(&[], &query, 5).is_empty());
    }
}
