//! The URL of a Postgres, which may list several hosts as in the programs of Postgres.

use std::fmt::Write as _;

use percent_encoding::percent_decode_str;
use url::form_urlencoded;

/// The parameter that says which of the hosts is wanted.
const TARGET: &str = "target_session_attrs";
/// The parameters that are about the list of hosts. The driver knows one host only.
const OF_HOSTS: [&str; 4] = ["host", "hostaddr", "port", TARGET];
/// The reason of a refusal of what should be a port, and may be a part of a password.
const WRONG_PORT: &str = "must have ports from 1 to 65535; other characters in a password are written as `%` and two \
    hexadecimal digits";

/// The demand on the server that a connection leads to: the parameter `target_session_attrs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetSessionAttrs {
    /// A server that is no standby. `any` means this, too: the server writes, so a standby is of no use.
    Primary,
    /// A server that is no standby, and whose sessions take writes by default.
    ReadWrite,
}

/// The URL of a Postgres. It may contain a password, so it is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    /// A URL for each host, as the driver takes it.
    pub hosts: Vec<String>,
    /// The demand on the server.
    pub target: TargetSessionAttrs,
}

impl PostgresUrl {
    /// Reads a URL. One with a single host is left to the driver, but for `target_session_attrs`.
    ///
    /// # Errors
    /// Returns the reason why the URL cannot be used, as a clause after "the URL". It names no part of the URL.
    pub fn parse(url: &str) -> Result<Self, String> {
        let parts = UrlParts::of(url);
        if !parts.lists_hosts() {
            return Ok(Self {
                hosts: vec![parts.with_one_host()],
                target: parts.target(TargetSessionAttrs::Primary)?,
            });
        }
        let hosts = parts.hosts()?;
        Ok(Self {
            hosts: hosts.iter().map(|host| parts.with_host(host)).collect(),
            target: parts.target(TargetSessionAttrs::ReadWrite)?,
        })
    }

    /// Returns a URL that lists several hosts as it may be printed: without its password and its parameters. None if it
    /// lists one host, or cannot be read.
    pub fn printable(url: &str) -> Option<String> {
        let parts = UrlParts::of(url);
        // A later `@` shows that the hosts are the beginning of a password.
        let has_whole_login = url.rfind('@').is_none_or(|at| at < parts.before.len());
        if !parts.authority.contains(',') || !has_whole_login || parts.hosts().is_err() {
            return None;
        }
        let (scheme, login) = parts.before.split_once("://")?;
        let login = match login.split_once(':') {
            Some((user, _)) => format!("{user}:***@"),
            None => login.to_owned(),
        };
        Some(format!("{scheme}://{login}{}{}", parts.authority, parts.path))
    }
}

/// The parts of a URL, as they are written.
struct UrlParts<'u> {
    /// The text before the hosts: the scheme and the login.
    before: &'u str,
    /// The hosts, with their ports.
    authority: &'u str,
    /// The path, which names the database.
    path: &'u str,
    parameters: Vec<&'u str>,
}

/// A host of a list. The port may be empty.
struct ListedHost {
    name: String,
    port: String,
}

impl<'u> UrlParts<'u> {
    fn of(url: &'u str) -> Self {
        let url = url.split_once('#').map_or(url, |(url, _)| url);
        let begin = url.find("://").map_or(0, |at| at + 3);
        let end = url[begin..].find(['/', '?']).map_or(url.len(), |at| begin + at);
        let hosts = url[begin..end].rfind('@').map_or(begin, |at| begin + at + 1);
        let (path, query) = url[end..].split_once('?').unwrap_or((&url[end..], ""));
        Self {
            before: &url[..hosts],
            authority: &url[hosts..end],
            path,
            parameters: query.split('&').filter(|parameter| !parameter.is_empty()).collect(),
        }
    }

    /// Returns the value of a parameter. The last one counts, as for the driver.
    fn value(&self, name: &str) -> Option<String> {
        let pairs = self
            .parameters
            .iter()
            .rev()
            .filter_map(|parameter| parse_parameter(parameter));
        let mut values = pairs.filter(|(key, _)| key == name).map(|(_, value)| value);
        values.next()
    }

    /// Returns whether the URL lists several hosts, or several ports or addresses.
    fn lists_hosts(&self) -> bool {
        let has_list = |name: &&str| self.value(name).is_some_and(|value| value.contains(','));
        self.authority.contains(',') || ["host", "hostaddr", "port"].iter().any(has_list)
    }

    fn hosts(&self) -> Result<Vec<ListedHost>, String> {
        if self.value("hostaddr").is_some() {
            return Err("must not have `hostaddr` with a list of hosts: name the addresses in `host`".to_owned());
        }
        let listed: Option<Vec<ListedHost>> = match self.value("host") {
            Some(names) => Some(names.split(',').map(|name| ListedHost::new(name, "")).collect()),
            None => self.authority.split(',').map(ListedHost::read).collect(),
        };
        let mut hosts = listed.ok_or(WRONG_PORT)?;
        if let Some(ports) = self.value("port") {
            let ports: Vec<&str> = ports.split(',').collect();
            if ports.len() != 1 && ports.len() != hosts.len() {
                return Err("must have one port in `port`, or as many as there are hosts".to_owned());
            }
            for (host, port) in hosts.iter_mut().zip(ports.iter().cycle()) {
                host.port = (*port).to_owned();
            }
        }
        if hosts.iter().any(|host| host.name.is_empty()) {
            return Err("must have a host before and behind each comma".to_owned());
        }
        if !hosts.iter().all(ListedHost::has_valid_port) {
            return Err(WRONG_PORT.to_owned());
        }
        Ok(hosts)
    }

    fn target(&self, default: TargetSessionAttrs) -> Result<TargetSessionAttrs, String> {
        match self.value(TARGET).as_deref() {
            None | Some("") => Ok(default),
            Some("any" | "primary") => Ok(TargetSessionAttrs::Primary),
            Some("read-write") => Ok(TargetSessionAttrs::ReadWrite),
            Some("read-only" | "standby" | "prefer-standby") => Err(
                "must not ask for a standby in `target_session_attrs`, since the server writes: use `read-write` or \
                 `primary`, or leave it out"
                    .to_owned(),
            ),
            Some(_) => Err("must have `read-write`, `primary` or `any` in `target_session_attrs`".to_owned()),
        }
    }

    /// Returns the URL without the parameter that the driver does not know.
    fn with_one_host(&self) -> String {
        let query = self.parameters_besides(&[TARGET]).join("&");
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{}{}{}{mark}{query}", self.before, self.authority, self.path)
    }

    /// Returns the URL with this host only, as a parameter, since a parameter can be a folder with a socket, too.
    fn with_host(&self, host: &ListedHost) -> String {
        let name: String = form_urlencoded::byte_serialize(host.name.as_bytes()).collect();
        let mut url = format!("{}localhost{}?host={name}", self.before, self.path);
        if !host.port.is_empty() {
            let _ = write!(url, "&port={}", host.port);
        }
        for parameter in self.parameters_besides(&OF_HOSTS) {
            let _ = write!(url, "&{parameter}");
        }
        url
    }

    /// Returns the parameters without those of these names.
    fn parameters_besides(&self, names: &[&str]) -> Vec<&'u str> {
        let is_other =
            |parameter: &&str| parse_parameter(parameter).is_none_or(|(key, _)| !names.contains(&key.as_str()));
        self.parameters.iter().copied().filter(is_other).collect()
    }
}

/// Returns the name and the value of a parameter.
fn parse_parameter(parameter: &str) -> Option<(String, String)> {
    let (key, value) = form_urlencoded::parse(parameter.as_bytes()).next()?;
    Some((key.into_owned(), value.into_owned()))
}

impl ListedHost {
    fn new(name: &str, port: &str) -> Self {
        Self {
            name: name.to_owned(),
            port: port.to_owned(),
        }
    }

    /// Reads a host in the place of hosts of a URL: `name`, `name:port`, `[address]` or `[address]:port`. None if other text
    /// follows an address.
    fn read(text: &str) -> Option<Self> {
        if let Some((address, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            let port = if rest.is_empty() { "" } else { rest.strip_prefix(':')? };
            return Some(Self::new(address, port));
        }
        let (name, port) = text.split_once(':').unwrap_or((text, ""));
        Some(Self::new(&percent_decode_str(name).decode_utf8_lossy(), port))
    }

    fn has_valid_port(&self) -> bool {
        let is_number = || self.port.bytes().all(|byte| byte.is_ascii_digit());
        let is_port = || self.port.parse::<u16>().is_ok_and(|port| port > 0);
        self.port.is_empty() || (is_number() && is_port())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> PostgresUrl {
        PostgresUrl::parse(url).unwrap_or_else(|reason| panic!("{url}: {reason}"))
    }

    fn refusal(url: &str) -> String {
        match PostgresUrl::parse(url) {
            Ok(_) => panic!("{url} is accepted"),
            Err(reason) => reason,
        }
    }

    #[test]
    fn a_url_with_one_host_is_left_to_the_driver() {
        for url in [
            "postgres://me:p%40ss@db.internal:5433/adjutant?sslmode=verify-full",
            "postgres://me:a,b@db/adjutant",
            "postgres:///adjutant?host=/var/run/postgresql",
            "postgresql://[::1]:5432/adjutant",
            "postgres://%2Frun%2Fpg/adjutant",
            "postgres://db",
        ] {
            let read = read(url);
            assert_eq!(read.hosts, [url]);
            assert_eq!(read.target, TargetSessionAttrs::Primary);
        }
    }

    #[test]
    fn each_host_of_a_list_gets_the_login_and_the_parameters() {
        let read = read("postgres://me:p%40ss@one:5432,two:5433/adjutant?sslmode=verify-full&application_name=a+b");
        assert_eq!(
            read.hosts,
            [
                "postgres://me:p%40ss@localhost/adjutant?host=one&port=5432&sslmode=verify-full&application_name=a+b",
                "postgres://me:p%40ss@localhost/adjutant?host=two&port=5433&sslmode=verify-full&application_name=a+b",
            ]
        );
    }

    #[test]
    fn a_host_without_a_port_has_the_port_of_the_driver() {
        let read = read("postgresql://one,two:5433,[2001:db8::1]:5434,[::1]");
        assert_eq!(
            read.hosts,
            [
                "postgresql://localhost?host=one",
                "postgresql://localhost?host=two&port=5433",
                "postgresql://localhost?host=2001%3Adb8%3A%3A1&port=5434",
                "postgresql://localhost?host=%3A%3A1",
            ]
        );
    }

    #[test]
    fn hosts_may_be_a_parameter_and_folders_with_sockets() {
        let parameter = read("postgres://me@localhost/adjutant?host=/run/one,/run/two");
        let encoded = read("postgres://me@%2Frun%2Fone,%2Frun%2Ftwo/adjutant");
        assert_eq!(
            parameter.hosts,
            [
                "postgres://me@localhost/adjutant?host=%2Frun%2Fone",
                "postgres://me@localhost/adjutant?host=%2Frun%2Ftwo",
            ]
        );
        assert!(encoded == parameter);
    }

    #[test]
    fn the_parameter_with_hosts_precedes_the_hosts_before_the_path() {
        let read = read("postgres://a:1,b:2/adjutant?host=c");
        assert_eq!(read.hosts, ["postgres://localhost/adjutant?host=c"]);
    }

    #[test]
    fn ports_are_one_for_all_hosts_or_one_for_each() {
        let shared = read("postgres:///adjutant?host=one,two&port=6432");
        let each = read("postgres:///adjutant?host=one,two&port=6432,6433");
        let ports = |read: &PostgresUrl| -> Vec<String> {
            let ports = read.hosts.iter().filter_map(|url| url.split_once("&port="));
            ports.map(|(_, port)| port.to_owned()).collect()
        };
        assert_eq!(ports(&shared), ["6432", "6432"]);
        assert_eq!(ports(&each), ["6432", "6433"]);
        for url in [
            "postgres:///adjutant?host=one,two&port=1,2,3",
            "postgres://one/adjutant?port=1,2",
        ] {
            assert!(refusal(url).contains("as many as there are hosts"), "{url}");
        }
    }

    #[test]
    fn several_hosts_are_asked_for_one_that_takes_writes() {
        let target = |url: &str| read(url).target;
        assert_eq!(target("postgres://one,two/a"), TargetSessionAttrs::ReadWrite);
        assert_eq!(target("postgres://one/a"), TargetSessionAttrs::Primary);
        for (word, expected) in [
            ("read-write", TargetSessionAttrs::ReadWrite),
            ("primary", TargetSessionAttrs::Primary),
            ("any", TargetSessionAttrs::Primary),
        ] {
            for hosts in ["one", "one,two"] {
                let read = read(&format!(
                    "postgres://{hosts}/a?target_session_attrs={word}&sslmode=require"
                ));
                assert_eq!(read.target, expected, "{hosts} {word}");
                assert!(
                    read.hosts
                        .iter()
                        .all(|url| !url.contains(TARGET) && url.ends_with("sslmode=require"))
                );
            }
        }
    }

    #[test]
    fn a_demand_for_a_standby_is_refused_with_the_way_out() {
        for hosts in ["one", "one,two"] {
            for word in ["read-only", "standby", "prefer-standby"] {
                let reason = refusal(&format!("postgres://{hosts}/a?target_session_attrs={word}"));
                assert!(
                    reason.contains("use `read-write` or `primary`, or leave it out"),
                    "{reason}"
                );
            }
            let reason = refusal(&format!("postgres://{hosts}/a?target_session_attrs=writable"));
            assert!(reason.contains("`read-write`, `primary` or `any`"), "{reason}");
        }
    }

    #[test]
    fn a_list_that_cannot_be_read_is_refused_without_a_part_of_the_password() {
        for (url, expected) in [
            ("postgres://me:s3cret@one,,two/a", "a host before and behind each comma"),
            ("postgres://me:s3cret@one,two,/a", "a host before and behind each comma"),
            ("postgres://me:s3cret@one:0,two/a", "ports from 1 to 65535"),
            ("postgres://me:s3cret@one:65536,two/a", "ports from 1 to 65535"),
            ("postgres://me:s3cret@one:+1,two/a", "ports from 1 to 65535"),
            ("postgres://me:s3cret@[::1]5432,two/a", "ports from 1 to 65535"),
            (
                "postgres://me:s3cret,/x@one:5432/a",
                "a host before and behind each comma",
            ),
            ("postgres://me:s3cret,x/x@one:5432/a", "ports from 1 to 65535"),
            (
                "postgres://me:s3cret@one,two/a?hostaddr=10.0.0.1",
                "name the addresses in `host`",
            ),
            (
                "postgres://me:s3cret@one/a?hostaddr=10.0.0.1,10.0.0.2",
                "name the addresses in `host`",
            ),
        ] {
            let reason = refusal(url);
            assert!(reason.contains(expected), "{url}: {reason}");
            assert!(!reason.contains("s3cret"), "{reason}");
        }
    }

    #[test]
    fn a_list_of_hosts_is_printed_without_the_password() {
        assert_eq!(
            PostgresUrl::printable("postgres://me:s3cret@one:5432,two:5433/adjutant?password=s3cret").as_deref(),
            Some("postgres://me:***@one:5432,two:5433/adjutant")
        );
        assert_eq!(
            PostgresUrl::printable("postgres://one,two/a").as_deref(),
            Some("postgres://one,two/a")
        );
        for url in [
            "postgres://me:s3cret@one/a",
            "postgres://me:s3cret,x/x@one:5432,two/a",
            "postgres://me:1,s3cret/x@one:5432,two/a",
            "postgres://me:1,s3cret#x@one:5432,two/a",
            "postgres://me:1,s3cret?x@one:5432,two/a",
            "postgres://me:1,,s3cret",
        ] {
            assert_eq!(PostgresUrl::printable(url), None, "{url}");
        }
    }
}
