//! The system calls that no command may make: those that leave the sandbox, change the system, or that other programs
//! of the machine could be attacked with.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// The system calls that are refused with `EPERM`.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_move_pages,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    // The limit on processes is kept by counting those of the session, and these queues outlive their processes.
    libc::SYS_mq_open,
    libc::SYS_msgget,
    libc::SYS_semget,
    libc::SYS_shmget,
];

/// The system calls that programs can do without: `ENOSYS` makes them use older ones. Of most of these a filter cannot see
/// the arguments.
const UNKNOWN: &[libc::c_long] = &[
    libc::SYS_clone3,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    // Its memory need not be mapped, and is in the count of no process then.
    libc::SYS_memfd_create,
    libc::SYS_openat2,
];

/// The flags of `clone` that make namespaces.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// The modes of a file that runs with the rights of its owner or group.
const SET_ID_MODES: [libc::mode_t; 2] = [libc::S_ISUID, libc::S_ISGID];

/// The bit of a system call of the ABI x32, which has the same architecture as x86-64.
#[cfg(target_arch = "x86_64")]
const X32: libc::c_long = 0x4000_0000;

/// The sockets that a command may open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SocketRule {
    /// None.
    None,
    /// Internet sockets.
    Internet,
    /// Internet and Unix sockets.
    InternetAndUnix,
}

/// The refusals of one error.
#[derive(Default)]
struct Refusals(BTreeMap<libc::c_long, Vec<SeccompRule>>);

impl Refusals {
    fn add(&mut self, call: libc::c_long) {
        // Without conditions every call is refused.
        self.0.insert(call, vec![]);
    }

    fn add_if(&mut self, call: libc::c_long, conditions: Vec<SeccompCondition>) -> Result<(), BackendError> {
        self.0.entry(call).or_default().push(SeccompRule::new(conditions)?);
        Ok(())
    }

    fn program(self, error: i32) -> Result<BpfProgram, String> {
        #[cfg(target_arch = "x86_64")]
        let rules = {
            let mut rules = self.0.clone();
            rules.extend(self.0.into_iter().map(|(call, rules)| (call | X32, rules)));
            rules
        };
        #[cfg(not(target_arch = "x86_64"))]
        let rules = self.0;
        let error = u32::try_from(error).map_err(|error| error.to_string())?;
        let arch = std::env::consts::ARCH
            .try_into()
            .map_err(|error: BackendError| error.to_string())?;
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(error), arch);
        let filter = filter.map_err(|error| error.to_string())?;
        filter.try_into().map_err(|error: BackendError| error.to_string())
    }
}

/// Returns whether an argument has all bits of `mask`.
fn has(argument: u8, mask: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask), mask)
}

/// Returns whether an argument is this number.
fn is(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}

/// Returns the filters that refuse system calls to a process and its children. A process that cannot leave its session
/// is always found in its process group.
///
/// # Errors
/// The reason why there are none.
pub(super) fn filters(sockets: SocketRule, keeps_session: bool) -> Result<[BpfProgram; 2], String> {
    let refused = refused(sockets, keeps_session).map_err(|error| error.to_string())?;
    let mut unknown = Refusals::default();
    UNKNOWN.iter().for_each(|call| unknown.add(*call));
    Ok([refused.program(libc::EPERM)?, unknown.program(libc::ENOSYS)?])
}

/// Applies filters to this process from now on.
///
/// # Errors
/// The reason why the kernel does not take them.
pub(super) fn apply(filters: &[BpfProgram]) -> Result<(), String> {
    for filter in filters {
        seccompiler::apply_filter(filter).map_err(|error| format!("seccomp: {error}"))?;
    }
    Ok(())
}

fn refused(sockets: SocketRule, keeps_session: bool) -> Result<Refusals, BackendError> {
    let mut refused = Refusals::default();
    REFUSED.iter().for_each(|call| refused.add(*call));
    for flag in NAMESPACES {
        refused.add_if(libc::SYS_clone, vec![has(0, u64::from(flag.cast_unsigned()))?])?;
    }
    for request in [libc::TIOCSTI, libc::TIOCLINUX] {
        refused.add_if(libc::SYS_ioctl, vec![is(1, SeccompCmpOp::Eq, request)?])?;
    }
    refuse_set_id_files(&mut refused)?;
    match sockets {
        SocketRule::None => refused.add(libc::SYS_socket),
        SocketRule::Internet => refused.add_if(libc::SYS_socket, others(&[libc::AF_INET, libc::AF_INET6])?)?,
        SocketRule::InternetAndUnix => {
            refused.add_if(
                libc::SYS_socket,
                others(&[libc::AF_INET, libc::AF_INET6, libc::AF_UNIX])?,
            )?;
        }
    }
    if keeps_session {
        refused.add(libc::SYS_setsid);
        refused.add(libc::SYS_setpgid);
    }
    Ok(refused)
}

/// Returns the conditions for a family of sockets that is none of these.
fn others(families: &[libc::c_int]) -> Result<Vec<SeccompCondition>, BackendError> {
    let other = |family: &libc::c_int| is(0, SeccompCmpOp::Ne, u64::from(family.cast_unsigned()));
    families.iter().map(other).collect()
}

/// Refuses to make files that other users of the machine could run with the rights of the server.
fn refuse_set_id_files(refused: &mut Refusals) -> Result<(), BackendError> {
    for mode in SET_ID_MODES.map(u64::from) {
        let creates = u64::from(libc::O_CREAT.cast_unsigned());
        refused.add_if(libc::SYS_fchmod, vec![has(1, mode)?])?;
        refused.add_if(libc::SYS_fchmodat, vec![has(2, mode)?])?;
        refused.add_if(libc::SYS_fchmodat2, vec![has(2, mode)?])?;
        refused.add_if(libc::SYS_mknodat, vec![has(2, mode)?])?;
        refused.add_if(libc::SYS_mkdirat, vec![has(2, mode)?])?;
        refused.add_if(libc::SYS_openat, vec![has(2, creates)?, has(3, mode)?])?;
        #[cfg(target_arch = "x86_64")]
        {
            refused.add_if(libc::SYS_chmod, vec![has(1, mode)?])?;
            refused.add_if(libc::SYS_creat, vec![has(1, mode)?])?;
            refused.add_if(libc::SYS_mknod, vec![has(1, mode)?])?;
            refused.add_if(libc::SYS_mkdir, vec![has(1, mode)?])?;
            refused.add_if(libc::SYS_open, vec![has(1, creates)?, has(2, mode)?])?;
        }
    }
    Ok(())
}
