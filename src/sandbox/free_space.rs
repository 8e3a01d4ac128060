//! The space that stays free on a disk when agents write to it.

#[cfg(unix)]
use std::os::fd::AsFd;

#[cfg(unix)]
use rustix::fs::{StatVfs, fstatvfs};

/// The space that has to stay free on a disk unless something else is said, in bytes.
#[cfg(unix)]
const USUAL_FREE_BYTES: u64 = 256 << 20;
/// Of a small disk, one of this many parts is enough: some are smaller than the usual space.
#[cfg(unix)]
const FREE_PARTS: u64 = 10;

/// Returns whether so little of a disk of `total` bytes is free that nothing may be written: less than `least`, or than the
/// usual space.
#[cfg(unix)]
fn is_too_little(free: u64, total: u64, least: Option<u64>) -> bool {
    // Some file systems do not count their blocks.
    total > 0 && free < least.unwrap_or_else(|| USUAL_FREE_BYTES.min(total / FREE_PARTS))
}

/// Returns whether a disk has too little free space for `more` bytes, see [`lacks_space`].
#[cfg(unix)]
pub(super) fn has_too_little(disk: &StatVfs, more: u64, least: Option<u64>) -> bool {
    let [free, total] = [disk.f_bavail, disk.f_blocks].map(|blocks| blocks.saturating_mul(disk.f_frsize));
    is_too_little(free.saturating_sub(more), total, least)
}

/// Returns whether the disk of an open directory has too little free space for `more` bytes: less than `least` would stay
/// free, or less than the usual space. Of a disk that does not tell its space nothing is known.
#[cfg(unix)]
pub fn lacks_space(directory: impl AsFd, more: u64, least: Option<u64>) -> bool {
    fstatvfs(directory).is_ok_and(|disk| has_too_little(&disk, more, least))
}

/// Returns false: nothing is known about disks here.
#[cfg(not(unix))]
pub fn lacks_space<T>(_: T, _: u64, _: Option<u64>) -> bool {
    false
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_small_disk_needs_less_free_space_than_a_large_one() {
        assert!(is_too_little(255 * MIB, 100_000 * MIB, None));
        assert!(!is_too_little(256 * MIB, 100_000 * MIB, None));
        assert!(is_too_little(6 * MIB, 64 * MIB, None));
        assert!(!is_too_little(7 * MIB, 64 * MIB, None));
    }

    #[test]
    fn the_given_space_precedes_and_a_disk_without_a_size_is_not_full() {
        assert!(is_too_little(7 * MIB, 64 * MIB, Some(256 * MIB)));
        assert!(!is_too_little(0, 64 * MIB, Some(0)));
        assert!(!is_too_little(0, 0, None));
        assert!(!is_too_little(0, 0, Some(MIB)));
    }
}
