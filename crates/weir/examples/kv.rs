//! A key-value store in a file that may be larger than RAM: `kv MEMORY FILE set KEY VALUE`, `get KEY`.
//!
//! The file is a table of slots, found by a hash of the key. It lives in a region of a pool; what changed is
//! written back at the end, page by page.

use std::fs::File;
use std::path::Path;
use weir::{FileRegion, Pool};

/// Bytes of a slot: the lengths of key and value, then both.
const SLOT_BYTES: usize = 64;
/// Slots of a new file: 64 MiB.
const SLOTS: usize = 1 << 20;

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [memory, file, "set", key, value] => {
            let pool = Pool::builder().memory(memory).build()?;
            let mut store = Store::open(&pool, Path::new(file), SLOTS)?;
            store.set(key.as_bytes(), value.as_bytes())?;
            println!("{} bytes were written", store.save()?);
        }
        [memory, file, "get", key] => {
            let pool = Pool::builder().memory(memory).build()?;
            let store = Store::open(&pool, Path::new(file), SLOTS)?;
            let value = store.get(key.as_bytes()).ok_or("no such key")?;
            println!("{}", String::from_utf8_lossy(value));
        }
        _ => {
            eprintln!("usage: kv MEMORY FILE set KEY VALUE, or kv MEMORY FILE get KEY");
            std::process::exit(2);
        }
    }
    Ok(())
}

/// A table of slots. A slot with a key of no bytes is free.
struct Store {
    file: FileRegion,
}

impl Store {
    /// That of a file; a new file gets so many slots.
    fn open(pool: &Pool, path: &Path, slots: usize) -> Result<Store, Error> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        let len = match usize::try_from(file.metadata()?.len())? {
            0 => slots * SLOT_BYTES,
            len if len.is_multiple_of(SLOT_BYTES) => len,
            len => return Err(format!("{len} bytes are no whole number of slots").into()),
        };
        Ok(Store { file: pool.map_file(file, len)? })
    }

    /// The first byte of the slot of a key, or of the free one that it would get. None: all are taken.
    fn find(&self, key: &[u8]) -> Option<usize> {
        let slots = self.file.len() / SLOT_BYTES;
        let first = hash(key) as usize % slots;
        let mut around = (first..slots).chain(0..first).map(|slot| slot * SLOT_BYTES);
        around.find(|at| {
            let slot = &self.file[*at..at + SLOT_BYTES];
            slot[0] == 0 || &slot[2..2 + usize::from(slot[0])] == key
        })
    }

    fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let slot = &self.file[self.find(key)?..][..SLOT_BYTES];
        let (key_len, len) = (usize::from(slot[0]), usize::from(slot[1]));
        (key_len > 0).then(|| &slot[2 + key_len..2 + key_len + len])
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        if key.is_empty() || 2 + key.len() + value.len() > SLOT_BYTES {
            return Err(format!("key and value have 1 to {} bytes in all", SLOT_BYTES - 2).into());
        }
        let at = self.find(key).ok_or("all slots are taken")?;
        let slot = &mut self.file[at..at + SLOT_BYTES];
        (slot[0], slot[1]) = (key.len() as u8, value.len() as u8);
        slot[2..2 + key.len()].copy_from_slice(key);
        slot[2 + key.len()..2 + key.len() + value.len()].copy_from_slice(value);
        Ok(())
    }

    /// Writes what changed to the file; how many bytes.
    fn save(&self) -> Result<u64, Error> {
        Ok(self.file.sync(..)?)
    }
}

/// The hash FNV-1a of a key.
fn hash(key: &[u8]) -> u64 {
    key.iter().fold(0xcbf2_9ce4_8422_2325, |h, byte| (h ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_of_three_budgets_is_there_again_and_a_change_writes_its_pages_alone() {
        const COUNT: u64 = 100_000;
        let path = std::env::temp_dir().join(format!("weir-kv-{}", std::process::id()));
        let value = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes().repeat(5);
        let pool = Pool::builder().memory("16MiB").set("faults", "inline").build().unwrap();
        let mut store = Store::open(&pool, &path, (48 << 20) / SLOT_BYTES).unwrap();
        for i in 0..COUNT {
            store.set(&i.to_be_bytes(), &value(i)).unwrap();
        }
        assert!(store.save().unwrap() > 40 << 20 && store.save().unwrap() == 0);
        drop((store, pool));

        let pool = Pool::builder().memory("8MiB").set("faults", "inline").build().unwrap();
        let mut store = Store::open(&pool, &path, 1).unwrap();
        let wrong = (0..COUNT).filter(|i| store.get(&i.to_be_bytes()) != Some(&value(*i)[..])).count();
        assert_eq!((wrong, store.get(b"no key")), (0, None));
        store.set(&7u64.to_be_bytes(), b"another").unwrap();
        store.set(b"new", b"").unwrap();
        assert!(store.set(b"", b"x").is_err() && store.set(b"x", &[0; SLOT_BYTES]).is_err());
        assert!((4096..=8192).contains(&store.save().unwrap()));
        drop(store);

        let store = Store::open(&pool, &path, 1).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(store.get(&7u64.to_be_bytes()), Some(&b"another"[..]));
        assert_eq!(
            (store.get(b"new"), store.get(&8u64.to_be_bytes())),
            (Some(&b""[..]), Some(&value(8)[..]))
        );
    }
}
