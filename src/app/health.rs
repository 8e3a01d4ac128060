//! `adjutant health`: asks a running server whether it works. It reads no more of the configuration than the address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, anyhow};
use futures::future::LocalBoxFuture;
use reqwest::{Url, redirect};

use crate::config::{self, HealthCommand};
use crate::net;

/// The maximum size of the answer, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// Asks the server, and returns a line for people.
///
/// # Errors
/// Returns an error if the server cannot be reached, or answers that it does not work.
pub fn ask(command: &HealthCommand) -> LocalBoxFuture<'_, anyhow::Result<String>> {
    Box::pin(async move {
        let base = match &command.url {
            Some(url) => url.clone(),
            None => format!("http://{}", local_address(&config::listen_address(&command.settings)?)),
        };
        let mut url = Url::parse(&base)
            .map_err(|error| anyhow!("--url {base:?} must be an address such as http://127.0.0.1:8123: {error}"))?;
        if !["http", "https"].contains(&url.scheme()) {
            return Err(anyhow!("--url {base:?} must begin with http:// or https://"));
        }
        let path = format!("{}/ok", url.path().trim_end_matches('/'));
        url.set_path(&path);
        url.set_query(command.db.then_some("check_db=1"));
        let client = net::client_builder()
            .redirect(redirect::Policy::none())
            // The server is on this machine, or was named.
            .no_proxy()
            .timeout(Duration::from_secs(command.timeout.into()))
            .build()
            .context("could not create the HTTP client")?;
        let place = url.origin().ascii_serialization();
        let sent = client.get(url).send().await;
        let response =
            sent.map_err(|error| anyhow!("unhealthy: {place} cannot be reached: {}", net::describe_error(&error)))?;
        let status = response.status();
        let body = net::read_bounded(response, MAX_ANSWER_BYTES).await.unwrap_or_default();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let is_ok = status.is_success() && body.get("ok").and_then(serde_json::Value::as_bool) == Some(true);
        match is_ok {
            true if command.db => Ok(format!("healthy: {place} answers, and can write to its database\n")),
            true => Ok(format!("healthy: {place} answers\n")),
            false => Err(anyhow!(
                "unhealthy: {place} answers with status {}{}",
                status.as_u16(),
                detail(&body)
            )),
        }
    })
}

/// Returns what an error response says, for the end of a line.
fn detail(body: &serde_json::Value) -> String {
    let detail = body.get("detail").and_then(serde_json::Value::as_str);
    detail.map(|detail| format!(": {detail}")).unwrap_or_default()
}

/// Returns the address by which a program on this machine reaches a server that listens on `listen`.
fn local_address(listen: &str) -> String {
    let Ok(address) = listen.parse::<SocketAddr>() else {
        return listen.to_owned();
    };
    reachable(address).to_string()
}

/// Returns the loopback address for an address that stands for all of a machine, and other addresses as they are.
pub(super) fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip @ (IpAddr::V4(_) | IpAddr::V6(_)) => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_all_interfaces_is_asked_at_the_loopback_address() {
        for (listen, expected) in [
            ("0.0.0.0:8123", "127.0.0.1:8123"),
            ("[::]:8123", "[::1]:8123"),
            ("10.1.2.3:80", "10.1.2.3:80"),
            ("agents.internal:8123", "agents.internal:8123"),
        ] {
            assert_eq!(local_address(listen), expected);
        }
    }
}
