//! The swap tier on a small ext4 disk of its own that fills up. Needs root, mkfs.ext4 and a loop device.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use weir::replay::PageId;
use weir::replay::swap::*;
use weir_os::fileio::{Backend, FileIo};
use weir_os::swapfile::{OpenError, SwapFile, space};

const MIB: u64 = 1 << 20;
const DISK_BYTES: u64 = 64 * MIB;

/// One test at a time: a child that `mount` is started in has this process's files open until its exec, and
/// so keeps their space.
static ALONE: Mutex<()> = Mutex::new(());

/// A mounted image; unmounted and removed when dropped, also by a failing test.
struct Disk {
    folder: PathBuf,
    image: PathBuf,
}

impl Disk {
    fn new(name: &str) -> Disk {
        let base = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let own = format!("{name}-{}", std::process::id());
        let disk = Disk { folder: base.join(&own), image: base.join(format!("{own}.img")) };
        std::fs::create_dir_all(&disk.folder).unwrap();
        std::fs::File::create(&disk.image).unwrap().set_len(DISK_BYTES).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&disk.image));
        run(Command::new("mount").args(["-o", "loop"]).arg(&disk.image).arg(&disk.folder));
        disk
    }

    fn path(&self) -> CString {
        CString::new(self.folder.to_str().unwrap()).unwrap()
    }

    fn free(&self) -> u64 {
        space(&self.path()).unwrap().free
    }

    /// Fills the disk but for `left` bytes, with a file that is deleted when dropped.
    fn fill(&self, left: u64) -> SwapFile {
        SwapFile::open(&self.path(), self.free() - left).unwrap()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: a failing test may still have files open here.
        let unmounted = Command::new("umount").arg("--lazy").arg(&self.folder).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("could not unmount {}: do it by hand", self.folder.display());
            return;
        }
        let removed = std::fs::remove_dir(&self.folder).and_then(|()| std::fs::remove_file(&self.image));
        if let Err(error) = removed {
            eprintln!("could not remove {}: {error}", self.image.display());
        }
    }
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}: is it installed?"));
    assert!(status.success(), "{command:?}: {status}: this test needs root and a loop device");
}

fn batch(
    tier: &Swap<FileIo>,
    writer: &mut Writer,
    cache: &mut SlotCache,
    first: u32,
) -> Result<usize, SwapError> {
    writer.clear();
    let mut page = first;
    while writer.push(PageId(page), Codec::Raw, &[page as u8; 4096]).is_ok() {
        page += 1;
    }
    writer.write(tier, cache)
}

#[test]
fn a_file_that_does_not_fit_is_refused_with_the_figures_and_one_that_fits_is_not() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let disk = Disk::new("weir-too-large");
    let free = disk.free();
    match SwapFile::open(&disk.path(), free + 8 * MIB) {
        Err(OpenError::NoSpace { wanted, free: left }) => {
            assert_eq!(wanted, free + 8 * MIB);
            assert!(left > free - MIB, "the refused file's blocks are free again: {left} of {free}");
        }
        other => panic!("{other:?}"),
    }
    let file = SwapFile::open(&disk.path(), 16 * MIB).unwrap();
    assert!(file.granted().preallocated && file.granted().unnamed && file.granted().direct);
    assert!(disk.free() <= free - 16 * MIB);
}

#[test]
fn what_was_allocated_is_written_although_the_disk_is_full_and_punched_space_may_be_gone() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for backend in [Backend::Uring, Backend::Plain] {
        // A disk for each: the kernel may close the files of a ring a little later than we do.
        let disk = Disk::new("weir-full");
        let file = SwapFile::open(&disk.path(), 8 * MIB).unwrap();
        let io = FileIo::new(file, backend);
        let tier = Swap::new(io, 8 * MIB, SwapSettings::default(), SwapEncryption::Aead).unwrap();
        let (mut writer, mut cache) = (Writer::new(1 << 20).unwrap(), SlotCache::new(64));
        let others = disk.fill(MIB / 2);
        // 1. The disk is full, the file is not: 3 of 4 clusters (one is kept for moving) take 2 batches each.
        let mut all = Vec::new();
        for i in 0..6 {
            batch(&tier, &mut writer, &mut cache, i * 1000).unwrap();
            all.extend(writer.written());
        }
        assert_eq!(batch(&tier, &mut writer, &mut cache, 9000), Err(SwapError::Full));
        // 2. All is freed and given back to the disk, where somebody takes it.
        all.iter().for_each(|(_, slot)| tier.free(&mut cache, *slot));
        writer.close(&tier);
        assert_eq!((tier.trim(), tier.trim()), (0, 3));
        let taken = disk.fill(MIB / 2);
        // 3. The one cluster that was never written has its blocks; the others are full, not broken.
        assert_eq!(batch(&tier, &mut writer, &mut cache, 0), Ok(writer.pages().count()));
        batch(&tier, &mut writer, &mut cache, 1000).unwrap();
        assert_eq!(batch(&tier, &mut writer, &mut cache, 2000), Err(SwapError::Full));
        assert_eq!(tier.is_latched(), None);
        tier.validate().unwrap();
        // 4. Once there is space again, writing goes on.
        drop(taken);
        assert_eq!(writer.write(&tier, &mut cache), Ok(writer.pages().count()));
        tier.validate().unwrap();
        drop(others);
    }
}

#[test]
fn a_file_that_takes_its_space_later_is_refused_by_a_full_disk_and_goes_on_when_there_is_room() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for backend in [Backend::Uring, Backend::Plain] {
        let disk = Disk::new("weir-later");
        let before = disk.free();
        let file = SwapFile::open_empty(&disk.path(), 16 * MIB, 4 * MIB).unwrap();
        assert!(disk.free() >= before - MIB, "it takes nothing yet");
        let settings = SwapSettings { blocks_later: true, ..SwapSettings::default() };
        let tier = Swap::new(FileIo::new(file, backend), 16 * MIB, settings, SwapEncryption::Aead).unwrap();
        let (mut writer, mut cache) = (Writer::new(1 << 20).unwrap(), SlotCache::new(64));
        // There is room for the file, but not for others beside it.
        let others = disk.fill(18 * MIB);
        assert_eq!(batch(&tier, &mut writer, &mut cache, 0), Err(SwapError::Full));
        assert_eq!((tier.is_latched(), tier.free_bytes()), (None, 0));
        assert!(disk.free() >= 17 * MIB, "nothing was taken");
        drop(others);
        assert_eq!(writer.write(&tier, &mut cache), Ok(writer.pages().count()));
        assert!(disk.free() <= before - 16 * MIB, "it has all its blocks");
        tier.validate().unwrap();
    }
}
