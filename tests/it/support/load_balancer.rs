//! HAProxy with the configuration that is shipped, before two servers of a test.

use std::process::{Child, Command, Stdio};

use super::client::Client;
use super::rented_postgres::free_port;
use super::server::installed;

/// The load balancer. It ends when this value is dropped.
pub(crate) struct LoadBalancer {
    child: Child,
    /// A client that reaches the servers through it.
    pub(crate) client: Client,
    _folder: tempfile::TempDir,
}

impl LoadBalancer {
    /// Starts it before the servers at these addresses; `None` if HAProxy is not installed on this machine.
    pub(crate) fn before(servers: [&Client; 2]) -> Option<Self> {
        let program = installed("haproxy")?;
        let address = |server: &Client| server.base().trim_start_matches("http://").to_owned();
        let port = free_port();
        let mut text = include_str!("../../../deploy/haproxy.cfg").to_owned();
        for (name, here) in [
            ("adjutant-1:8123", address(servers[0])),
            ("adjutant-2:8123", address(servers[1])),
            ("bind :8123", format!("bind 127.0.0.1:{port}")),
        ] {
            assert!(text.contains(name), "{name} is not in the configuration");
            text = text.replace(name, &here);
        }
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("haproxy.cfg");
        std::fs::write(&file, text).expect("a file");
        let checked = Command::new(&program)
            .args(["-c", "-f"])
            .arg(&file)
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(checked.status.success() && !said.contains("WARNING"), "{said}");
        // In the foreground, and without processes of its own.
        let child = Command::new(program)
            .arg("-db")
            .arg("-f")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        Some(Self {
            child,
            client: Client::new(&format!("http://127.0.0.1:{port}")),
            _folder: folder,
        })
    }
}

impl Drop for LoadBalancer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
