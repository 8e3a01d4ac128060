//! The processes below this one, as the kernel lists them.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::thread::sleep;
use std::time::Duration;

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

/// Returns the memory that processes have for themselves, in bytes.
pub(super) fn memory_of(processes: &[Pid]) -> u64 {
    let each = processes.iter().map(|pid| memory_bytes(*pid));
    each.fold(0, u64::saturating_add)
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

/// Returns the memory that a process has for itself.
fn memory_bytes(pid: Pid) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/statm", pid.as_raw_nonzero())).unwrap_or_default();
    let mut pages = text.split(' ').skip(1).filter_map(|word| word.parse::<u64>().ok());
    let resident = pages.next().unwrap_or(0);
    let shared = pages.next().unwrap_or(0);
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
    resident.saturating_sub(shared).saturating_mul(page)
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
