//! The arguments of `bwrap`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::CommandPlan;

/// The place of the workspace inside.
pub(super) const WORKSPACE: &str = "/workspace";
/// The place of this program inside.
const PROGRAM: &str = "/run/adjutant";
/// The directories of the system that a command sees.
pub(super) const SYSTEM: [&str; 8] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
];
/// The part of `/etc` that it sees. Servers keep their secrets there, too.
pub(super) const ETC: [&str; 24] = [
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ca-certificates.conf",
    "/etc/crypto-policies",
    "/etc/debian_version",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/java",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/magic",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/timezone",
];
/// The directories with certificates of authorities. Keys lie beside them.
pub(super) const CERTIFICATES: [&str; 2] = ["/etc/ssl/certs", "/etc/ssl/openssl.cnf"];

/// Returns the command that starts `bwrap` for a plan, up to the program inside.
pub(super) fn command(plan: &CommandPlan) -> Result<Command, String> {
    let program = fs::read_link("/proc/self/exe").map_err(|error| format!("the own program is unknown: {error}"))?;
    let bwrap = find().ok_or_else(|| "there is no program bwrap (bubblewrap)".to_owned())?;
    let mut command = Command::new(bwrap);
    command.args([
        "--unshare-user",
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--die-with-parent",
        "--new-session",
        "--hostname",
        "sandbox",
        "--cap-drop",
        "ALL",
    ]);
    if !plan.has_network {
        command.arg("--unshare-net");
    }
    for place in SYSTEM {
        command.args(system_directory(Path::new(place)));
    }
    for place in ETC.iter().chain(&CERTIFICATES) {
        command.args(["--ro-bind-try", place, place]);
    }
    let memory = plan.limits.memory_bytes.to_string();
    command.args(["--proc", "/proc", "--dev", "/dev"]);
    command.args(["--size", &memory, "--tmpfs", "/dev/shm"]);
    command.args(["--size", &memory, "--tmpfs", "/tmp"]);
    for place in &plan.readable {
        command.arg("--ro-bind").arg(place).arg(place);
    }
    let bind = if plan.is_read_only { "--ro-bind" } else { "--bind" };
    command.arg(bind).arg(&plan.directory).arg(WORKSPACE);
    command.arg("--ro-bind").arg(program).arg(PROGRAM);
    command.args(["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORKSPACE]);
    command.args(["--", PROGRAM]);
    Ok(command)
}

/// Returns the arguments for a directory of the system, which may be a link to another one.
fn system_directory(place: &Path) -> Vec<OsString> {
    if let Ok(target) = fs::read_link(place) {
        return vec!["--symlink".into(), target.into(), place.into()];
    }
    vec!["--ro-bind-try".into(), place.into(), place.into()]
}

/// Returns the program `bwrap`, from the directories of the system alone: a directory of `PATH` may belong to anyone.
pub(super) fn find() -> Option<PathBuf> {
    let places = ["/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap"];
    places.into_iter().map(PathBuf::from).find(|place| place.is_file())
}
