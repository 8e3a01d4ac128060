//! The processes below this one, as the kernel lists them.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, getpid, kill_process_group, pidfd_open,
    pidfd_send_signal, waitid, waitpid,
};

/// The number of rounds in which all processes are killed. A round is enough unless processes are being started.
const KILL_ROUNDS: usize = 2_000;
/// The pause between two rounds.
const KILL_PAUSE: Duration = Duration::from_millis(2);
/// The most processes that are looked at in one round.
const MOST: usize = 4_096;
/// The bytes of the number of a process and of the blank after it, at most.
const NUMBER_BYTES: usize = 11;
/// The most ancestors of a process that are looked at.
const MOST_ANCESTORS: usize = 100_000;
/// The memory of all processes of a command, where what they share counts in each of them, as a multiple of the limit. To tell the
/// part of each takes the longer the more that is, so processes with more are killed without that.
const MOST_SHARING: u64 = 8;
/// The pause after such a count, as a multiple of the time that it took: a command must not keep its supervisor busy, which
/// runs before all others.
const PAUSE_AFTER_COUNT: u32 = 3;

/// Returns whether the kernel lists the children of processes.
pub(super) fn can_list() -> bool {
    let own = std::process::id();
    fs::exists(format!("/proc/{own}/task/{own}/children")).unwrap_or(false)
}

/// Returns the number of threads of the user of this process, in all of the user's processes.
pub(super) fn threads_of_user() -> u64 {
    let own = rustix::process::geteuid().as_raw();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let of_user = processes.filter(|process| process.metadata().is_ok_and(|metadata| metadata.uid() == own));
    let threads = of_user.map(|process| fs::read_dir(process.path().join("task")).map_or(0, Iterator::count));
    threads.map(|count| u64::try_from(count).unwrap_or(u64::MAX)).sum()
}

/// Returns the processes below `top`, at most one more than `most`. Processes whose parent has ended are children of the
/// supervisor.
///
/// No more than that is read: the list of a process that starts others all the time would have no end.
pub(super) fn below(top: Pid, most: usize) -> Vec<Pid> {
    let mut found: Vec<Pid> = vec![];
    let mut open = vec![top];
    while let Some(pid) = open.pop() {
        let room = most.saturating_add(1).saturating_sub(found.len());
        let children = children(pid, room);
        found.extend(&children);
        open.extend(children);
        if found.len() > most {
            break;
        }
    }
    found
}

/// The count of the memory of processes.
pub(super) struct MemoryCount {
    /// The most that they may have together, in bytes.
    most: u64,
    /// The time until which the part of each in shared memory is not counted again.
    paused_until: Option<Instant>,
}

impl MemoryCount {
    /// Creates the count of processes that may have this number of bytes together.
    pub(super) fn new(most: u64) -> Self {
        Self {
            most,
            paused_until: None,
        }
    }

    /// Returns whether processes have too much memory together: what each has for itself, and what they share with each other.
    /// Files that are mapped do not count.
    pub(super) fn is_exceeded(&mut self, processes: &[Pid]) -> bool {
        let sum = |bytes: fn(Pid) -> u64| {
            let each = processes.iter().map(|pid| bytes(*pid));
            each.fold(0, u64::saturating_add)
        };
        // Each of these is slower than the one before and at most as large: the first counts files, too, and the second counts
        // shared memory in every process that uses it.
        sum(resident_bytes) > self.most && self.is_too_much(sum(memory_bytes), || sum(proportional_bytes))
    }

    /// Returns whether processes have too much memory of which `bytes` counts what they share in each of them, and `divided`
    /// counts it once.
    fn is_too_much(&mut self, bytes: u64, divided: impl FnOnce() -> u64) -> bool {
        if bytes <= self.most {
            return false;
        }
        if bytes > self.most.saturating_mul(MOST_SHARING) {
            return true;
        }
        let began = Instant::now();
        if self.paused_until.is_some_and(|until| began < until) {
            return false;
        }
        let is_too_much = divided() > self.most;
        let pause = began.elapsed().saturating_mul(PAUSE_AFTER_COUNT);
        self.paused_until = Instant::now().checked_add(pause);
        is_too_much
    }
}

/// Returns the children of a process, at most this number.
fn children(pid: Pid, most: usize) -> Vec<Pid> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())) else {
        return vec![];
    };
    let mut found = vec![];
    for task in tasks.flatten() {
        let Ok(list) = File::open(task.path().join("children")) else {
            continue;
        };
        let longest = u64::try_from(most.saturating_mul(NUMBER_BYTES)).unwrap_or(u64::MAX);
        let mut text = String::new();
        // An error means that the process has ended.
        let _ = list.take(longest).read_to_string(&mut text);
        // A blank follows each number, so that one that is cut off can be told.
        let whole = text.split_inclusive(' ').filter_map(|word| word.strip_suffix(' '));
        found.extend(whole.filter_map(|word| Pid::from_raw(word.parse().ok()?)));
        if found.len() >= most {
            found.truncate(most);
            break;
        }
    }
    found
}

/// Returns the memory of a process, with the files that it has mapped.
fn resident_bytes(pid: Pid) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/statm", pid.as_raw_nonzero())).unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|word| word.parse::<u64>().ok());
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
    pages.unwrap_or(0).saturating_mul(page)
}

/// Returns the memory that a process has for itself, with all that it shares.
fn memory_bytes(pid: Pid) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
    // A process that has ended has none.
    bytes_in(&text, ["RssAnon:", "RssShmem:"]).unwrap_or(0)
}

/// Returns the memory that a process has for itself, with its part of what it shares. All of that counts if the kernel does
/// not tell the part.
fn proportional_bytes(pid: Pid) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", pid.as_raw_nonzero())).unwrap_or_default();
    bytes_in(&text, ["Pss_Anon:", "Pss_Shmem:"]).unwrap_or_else(|| memory_bytes(pid))
}

/// Returns the sum of the sizes that these lines tell, in bytes; none if one of the lines is not there.
fn bytes_in(text: &str, lines: [&str; 2]) -> Option<u64> {
    let kibibytes = |name: &str| {
        let size = text.lines().find_map(|line| line.strip_prefix(name))?;
        size.split_whitespace().next()?.parse::<u64>().ok()
    };
    let sum: Option<u64> = lines.into_iter().map(kibibytes).sum();
    sum.map(|kibibytes| kibibytes.saturating_mul(1024))
}

/// Returns the status of `leader` if it has ended. Its number stays taken, so that no other process and no other group
/// can get it: [`kill_all`] gives it back.
pub(super) fn status_of(leader: Pid) -> Option<WaitIdStatus> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(leader), options).ok().flatten()
}

/// Takes note of children that have ended, except for `leader`.
pub(super) fn reap_others(leader: Pid) {
    let others = children(getpid(), MOST).into_iter().filter(|pid| *pid != leader);
    others.for_each(reap);
}

/// Takes note of a child, if it has ended.
fn reap(pid: Pid) {
    // An error means that it is taken note of.
    let _ = waitpid(Some(pid), WaitOptions::NOHANG);
}

/// Kills the process group of `leader` and all processes below this one, until none is left.
pub(super) fn kill_all(leader: Pid) {
    for _ in 0..KILL_ROUNDS {
        // One signal reaches the whole group at one instant. The number of the group is that of the leader, which is
        // still taken.
        let _ = kill_process_group(leader, Signal::KILL);
        reap_others(leader);
        let has_ended = status_of(leader).is_some();
        let mut left = below(getpid(), MOST);
        left.retain(|pid| *pid != leader || !has_ended);
        if left.is_empty() {
            break;
        }
        left.into_iter().for_each(kill);
        sleep(KILL_PAUSE);
    }
    reap(leader);
}

/// Kills a process below this one. Its number may belong to another process by now, which is left alone.
fn kill(pid: Pid) {
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
        return;
    };
    if is_below(pid) {
        // An error means that it has ended.
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
}

/// Returns whether a process is below this one.
fn is_below(pid: Pid) -> bool {
    let mut ancestors = std::iter::successors(Some(pid), |pid| parent(*pid)).take(MOST_ANCESTORS);
    ancestors.any(|ancestor| ancestor == getpid())
}

/// Returns the parent of a process.
fn parent(pid: Pid) -> Option<Pid> {
    let text = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name before the last parenthesis may contain anything; the state and the parent follow it.
    let (_, after_name) = text.rsplit_once(')')?;
    Pid::from_raw(after_name.split_whitespace().nth(1)?.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_from_lines_of_the_kernel() {
        let text = "VmRSS:\t    4000 kB\nRssAnon:\t    1000 kB\nRssFile:\t    2990 kB\nRssShmem:\t      10 kB\n";
        assert_eq!(bytes_in(text, ["RssAnon:", "RssShmem:"]), Some(1010 * 1024));
        assert_eq!(bytes_in(text, ["RssAnon:", "Pss_Anon:"]), None);
        assert_eq!(bytes_in("", ["RssAnon:", "RssShmem:"]), None);
    }

    #[test]
    fn a_process_has_memory_in_every_count() {
        for bytes in [resident_bytes, memory_bytes, proportional_bytes] {
            let own = bytes(getpid());
            assert!(own > 0 && own < 1 << 40, "{own}");
        }
        assert!(MemoryCount::new(0).is_exceeded(&[getpid()]));
        assert!(!MemoryCount::new(u64::MAX).is_exceeded(&[getpid()]));
        assert!(!MemoryCount::new(0).is_exceeded(&[]));
    }

    #[test]
    fn shared_memory_is_divided_only_where_that_matters_and_a_part_of_the_time() {
        let mut count = MemoryCount::new(100);
        assert!(!count.is_too_much(100, || panic!("it is within the limit")));
        assert!(count.is_too_much(801, || panic!("it takes too long")));
        assert!(count.is_too_much(800, || 101));
        count.paused_until = None;
        assert!(!count.is_too_much(800, || 100));
        count.paused_until = Instant::now().checked_add(Duration::from_secs(600));
        assert!(!count.is_too_much(800, || panic!("it was counted just before")));
        assert!(count.is_too_much(801, || panic!("it takes too long")));
    }
}
