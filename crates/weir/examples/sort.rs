//! Sorts a file of 64-bit numbers that may be larger than RAM: `sort MEMORY IN OUT`.
//!
//! The numbers are read into a region by ordinary calls, sorted there by the standard library, and written.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use weir::{Pool, WeirVec};

/// Bytes read and written at a time.
const PIECE_BYTES: usize = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [memory, from, to] = &words[..] else {
        eprintln!("usage: sort MEMORY IN OUT, for example: sort 1GiB numbers.bin sorted.bin");
        std::process::exit(2);
    };
    let pool = Pool::builder().memory(memory.as_str()).build()?;
    let count = sort_file(&pool, Path::new(from), Path::new(to))?;
    let stats = pool.stats();
    eprintln!("{count} numbers in {} MiB of RAM", stats.ram >> 20);
    Ok(())
}

/// Sorts the numbers of one file into another; how many there are.
fn sort_file(pool: &Pool, from: &Path, to: &Path) -> Result<usize, Box<dyn std::error::Error>> {
    let mut input = File::open(from)?;
    let count = usize::try_from(input.metadata()?.len())? / size_of::<u64>();
    let mut numbers: WeirVec<[u8; 8]> = WeirVec::zeroed(pool, count)?;
    for piece in numbers.chunks_mut(PIECE_BYTES / size_of::<u64>()) {
        input.read_exact(piece.as_flattened_mut())?;
    }
    numbers.sort_unstable_by_key(|bytes| u64::from_le_bytes(*bytes));
    let mut output = File::create(to)?;
    for piece in numbers.chunks(PIECE_BYTES / size_of::<u64>()) {
        output.write_all(piece.as_flattened())?;
    }
    output.flush()?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_three_budgets_is_sorted_within_one() {
        const COUNT: u64 = (48 << 20) / 8;
        let folder = std::env::temp_dir().join(format!("weir-sort-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (from, to) = (folder.join("in"), folder.join("out"));
        // An odd factor: every number from 0 on, once each, in no order, and none of them compresses.
        let numbers: Vec<u8> =
            (0..COUNT).flat_map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
        std::fs::write(&from, &numbers).unwrap();
        let pool = Pool::builder().memory("16MiB").build().unwrap();
        assert_eq!(sort_file(&pool, &from, &to).unwrap() as u64, COUNT);
        let mut expected: Vec<u64> = (0..COUNT).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        expected.sort_unstable();
        let sorted = std::fs::read(&to).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let sorted = sorted.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().unwrap()));
        assert!(sorted.eq(expected), "the file is not sorted");
        assert!(pool.counters().iter().any(|(key, value)| *key == "pswpout" && *value > 0), "none left RAM");
    }
}
