//! `adjutant mcp`: logins to MCP servers that require a user at a browser.

use std::process::Stdio;
use std::time::Duration;

use adjutant::domain::time::{Clock, ManualClock, SystemClock};
use reqwest::Url;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::mcp_oauth::{opens, opens_for};
use crate::access::encryption::is_stored;
use crate::support::authorization_server::AuthorizationServer;
use crate::support::client::Client;
use crate::support::{
    Engine, Human, TestServer, call, eventually, on_both_engines, on_postgres, script, without_postgres,
};

on_both_engines! {
    a_login_brings_the_token_of_every_call,
    a_restarted_server_is_still_logged_in,
    a_token_is_refreshed_before_it_expires,
    a_token_that_the_server_refuses_is_refreshed_once,
    a_token_that_may_still_be_accepted_is_used_while_refreshes_fail,
    a_login_without_refresh_tokens_ends_when_its_token_expires,
    a_login_that_the_authorization_server_ends_names_the_command,
    a_logout_deletes_the_tokens_and_revokes_them,
    an_agent_whose_server_has_no_login_reads_the_command,
    a_login_for_another_address_is_not_used,
    a_tenant_uses_its_own_login_and_others_that_of_all,
    secrets_of_a_login_are_neither_logged_nor_shown_nor_stored_in_clear,
    a_configured_client_proves_its_identity,
    logins_and_logouts_are_in_the_audit,
    the_check_of_connections_names_the_command,
    a_login_that_lacks_a_scope_is_listed_and_the_next_login_asks_for_it_too,
    a_login_is_not_asked_for_more_than_the_configured_scopes,
}

on_postgres! {
    two_servers_refresh_a_token_once,
    a_running_server_notices_logins_and_logouts,
    a_running_server_uses_the_scopes_of_a_new_login,
}

without_postgres! {
    a_redirect_with_another_state_changes_nothing,
    a_redirect_of_another_authorization_server_fails_the_login,
    a_redirect_without_the_promised_issuer_fails_the_login,
    a_login_that_the_user_refuses_fails_with_the_reason,
    an_authorization_server_without_pkce_is_refused,
    an_authorization_server_that_registers_nobody_needs_a_client_id,
    metadata_that_are_too_large_or_of_a_wrong_form_are_refused,
    metadata_of_another_server_are_refused,
    the_address_can_be_pasted,
    a_login_that_nobody_makes_ends_in_time,
    a_server_that_needs_no_login_is_named_with_those_that_do,
    commands_about_logins_need_a_stopped_server_on_sqlite,
}

/// The keys of the database.
const ENCRYPTION: &str = "[encryption]\nkey_file = \"master.keys\"\n";
const KEYS: &str = "one:MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n";

/// A command that runs.
struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    said: String,
}

impl Running {
    /// Starts `adjutant mcp` with these arguments on the server's database.
    fn begins(server: &TestServer, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_adjutant"));
        let configuration = server.configuration();
        command
            .arg("mcp")
            .args(arguments)
            .arg("--config")
            .arg(&configuration)
            .current_dir(configuration.parent().expect("a folder"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().expect("the program starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self {
            child,
            lines,
            said: String::new(),
        }
    }

    /// Reads what the command prints up to the address for the browser.
    async fn address(&mut self) -> Url {
        while let Some(line) = self.lines.next_line().await.expect("text") {
            self.said.push_str(&line);
            if line.starts_with("http") {
                return Url::parse(&line).expect("an address");
            }
        }
        let mut errors = String::new();
        let stderr = self.child.stderr.as_mut().expect("a pipe");
        stderr.read_to_string(&mut errors).await.expect("text");
        panic!("no address: {}{errors}", self.said)
    }

    /// Waits for the end of the command. Returns whether it succeeded, and what it has printed.
    async fn ends(mut self) -> (bool, String) {
        while let Some(line) = self.lines.next_line().await.expect("text") {
            self.said.push_str(&line);
            self.said.push('\n');
        }
        let output = self.child.wait_with_output().await.expect("it ends");
        self.said.push_str(&String::from_utf8_lossy(&output.stderr));
        (output.status.success(), self.said)
    }
}

/// Runs `adjutant mcp` with these arguments to its end, which has to be a success, and returns what it prints.
async fn commands(server: &TestServer, arguments: &[&str]) -> String {
    let ended = Running::begins(server, arguments).ends().await;
    assert!(ended.0, "{}", ended.1);
    ended.1
}

/// Runs `adjutant mcp` with these arguments to its end, which has to be a failure, and returns what it prints.
async fn fails(server: &TestServer, arguments: &[&str]) -> String {
    let ended = Running::begins(server, arguments).ends().await;
    assert!(!ended.0, "{}", ended.1);
    ended.1
}

/// Opens an address as a browser does, and returns the status and the text of the last page.
async fn browses(address: Url) -> (u16, String) {
    let browser = adjutant::net::client_builder().build().expect("a client");
    let response = browser.get(address).send().await.expect("a page");
    let status = response.status().as_u16();
    (status, response.text().await.expect("a text"))
}

/// Logs in with these arguments, and returns what the command prints.
async fn logs_in_with(server: &TestServer, arguments: &[&str]) -> String {
    let mut command = Running::begins(server, &[&["login", "vault"], arguments].concat());
    let page = browses(command.address().await).await;
    assert_eq!(page, (200, "Logged in. You can close this page.\n".to_owned()));
    let ended = command.ends().await;
    assert!(ended.0, "{}", ended.1);
    ended.1
}

/// Tries to log in, and returns the page of the browser and what the command prints.
async fn login_fails(server: &TestServer) -> (u16, String) {
    let mut command = Running::begins(server, &["login", "vault"]);
    let page = browses(command.address().await).await;
    let ended = command.ends().await;
    assert!(!ended.0, "{}", ended.1);
    (page.0, ended.1)
}

/// Starts the servers, and logs in before the server under test has started.
async fn logged_in(server: &TestServer) -> AuthorizationServer {
    let vault = AuthorizationServer::start_for(server, "").await;
    logs_in_with(server, &[]).await;
    vault
}

/// Returns a clock that shows the time of the machine, and moves no more.
fn stopped_clock() -> ManualClock {
    ManualClock::starting_at(SystemClock.now())
}

/// Calls the tool that is there while nobody has logged in, and returns the result.
async fn hears(client: Client) -> String {
    let alice = Human::on_new_thread(client, "treasurer").await;
    alice
        .says(
            script()
                .calls(call("c1", "vault__login_required", json!({})))
                .says("done"),
        )
        .await;
    let said = alice.transcript().await;
    said[said.len() - 2].clone()
}

/// Returns the value of the header `authorization` of the last call.
fn last_call(vault: &AuthorizationServer) -> String {
    vault.state().calls.last().expect("a call").clone()
}

async fn a_login_brings_the_token_of_every_call(server: TestServer) {
    let vault = AuthorizationServer::start_for(&server, "").await;
    let said = logs_in_with(&server, &["--port", "0"]).await;
    assert!(
        said.contains("Logged in to `vault`. The server renews the login by itself."),
        "{said}"
    );
    assert!(said.contains("The tokens are stored in clear"), "{said}");
    assert_eq!(opens(&server).await, "vault__open: open");
    assert_eq!(opens(&server).await, "vault__open: open");
    let state = vault.state();
    assert_eq!(state.calls, ["Bearer access-t0ken-1-x", "Bearer access-t0ken-1-x"]);
    let login = &state.logins[0];
    let redirect = &login["redirect_uri"];
    assert!(redirect.starts_with("http://127.0.0.1:"), "{redirect}");
    let resource = format!("{}/mcp", vault.base);
    for (name, value) in [
        ("response_type", "code"),
        ("client_id", "registered-1"),
        ("code_challenge_method", "S256"),
        ("scope", "vault:open"),
        ("resource", resource.as_str()),
    ] {
        assert_eq!(login[name], value, "{name}");
    }
    let registration = &state.registrations[0];
    assert_eq!(registration["redirect_uris"], json!([redirect]));
    assert_eq!(registration["token_endpoint_auth_method"], "none");
    assert_eq!(state.token_requests.len(), 1);
    let (authorization, form) = &state.token_requests[0];
    assert_eq!(*authorization, None);
    assert_eq!(form["client_id"], "registered-1");
    assert_eq!(form["resource"], resource);
}

async fn a_restarted_server_is_still_logged_in(server: TestServer) {
    let vault = logged_in(&server).await;
    assert_eq!(opens(&server).await, "vault__open: open");
    server.is_stopped_and_started_again().await;
    assert_eq!(opens(&server).await, "vault__open: open");
    assert_eq!(vault.state().token_requests.len(), 1);
    assert_eq!(vault.state().logins.len(), 1);
}

async fn a_token_is_refreshed_before_it_expires(server: TestServer) {
    let vault = logged_in(&server).await;
    let clock = stopped_clock();
    server.uses_clock(&clock).await;
    opens(&server).await;
    assert_eq!(vault.count_of("refresh_token"), 0);
    // Nine tenths of an hour are 54 minutes.
    clock.advance(Duration::from_mins(55));
    assert_eq!(opens(&server).await, "vault__open: open");
    assert_eq!(last_call(&vault), "Bearer access-t0ken-2-x");
    {
        let state = vault.state();
        let form = &state.token_requests[1].1;
        assert_eq!(form["refresh_token"], "refresh-t0ken-1-x");
        assert_eq!(form["resource"], format!("{}/mcp", vault.base));
    }
    // The refresh token was replaced, too.
    clock.advance(Duration::from_mins(55));
    opens(&server).await;
    assert_eq!(last_call(&vault), "Bearer access-t0ken-3-x");
    assert_eq!(vault.count_of("refresh_token"), 2);
    assert!(!vault.state().was_reused);
}

async fn a_token_that_the_server_refuses_is_refreshed_once(server: TestServer) {
    let vault = logged_in(&server).await;
    opens(&server).await;
    vault.revokes_access_tokens();
    assert_eq!(opens(&server).await, "vault__open: open");
    assert_eq!(last_call(&vault), "Bearer access-t0ken-2-x");
    opens(&server).await;
    assert_eq!(vault.count_of("refresh_token"), 1);
}

async fn a_token_that_may_still_be_accepted_is_used_while_refreshes_fail(server: TestServer) {
    let vault = logged_in(&server).await;
    let clock = stopped_clock();
    server.uses_clock(&clock).await;
    vault.behaves(|manners| manners.refresh_fails = Some(503));
    clock.advance(Duration::from_mins(55));
    assert_eq!(opens(&server).await, "vault__open: open");
    assert_eq!(last_call(&vault), "Bearer access-t0ken-1-x");
    assert!(vault.count_of("refresh_token") > 0);
    clock.advance(Duration::from_mins(10));
    let result = opens(&server).await;
    assert!(
        result.contains("its authorization server answered with status 503"),
        "{result}"
    );
    vault.behaves(|manners| manners.refresh_fails = None);
    assert_eq!(opens(&server).await, "vault__open: open");
}

async fn a_login_without_refresh_tokens_ends_when_its_token_expires(server: TestServer) {
    let vault = AuthorizationServer::start_for(&server, "").await;
    vault.behaves(|manners| manners.gives_refresh_tokens = false);
    let said = logs_in_with(&server, &[]).await;
    assert!(said.contains("The login ends at "), "{said}");
    let clock = stopped_clock();
    server.uses_clock(&clock).await;
    opens(&server).await;
    clock.advance(Duration::from_mins(61));
    let result = opens(&server).await;
    assert!(result.contains("the login has expired"), "{result}");
    assert!(result.contains("`adjutant mcp login vault`"), "{result}");
}

async fn a_login_that_the_authorization_server_ends_names_the_command(server: TestServer) {
    let vault = logged_in(&server).await;
    opens(&server).await;
    vault.ends_logins();
    let result = opens(&server).await;
    assert!(
        result.contains("the authorization server has ended the login"),
        "{result}"
    );
    assert!(result.contains("`adjutant mcp login vault`"), "{result}");
    assert_eq!(vault.count_of("refresh_token"), 1);
    server.is_stopped().await;
    let said = commands(&server, &["list"]).await;
    assert!(said.contains("the authorization server has ended the login"), "{said}");
    // A refresh token that was refused is not sent again.
    server.is_stopped_and_started_again().await;
    let result = hears(server.client()).await;
    assert!(result.contains("`adjutant mcp login vault`"), "{result}");
    assert_eq!(vault.count_of("refresh_token"), 1);
}

async fn a_logout_deletes_the_tokens_and_revokes_them(server: TestServer) {
    let vault = logged_in(&server).await;
    opens(&server).await;
    server.is_stopped().await;
    let said = commands(&server, &["list"]).await;
    assert!(said.contains("logged in") && !said.contains("not logged in"), "{said}");
    let said = commands(&server, &["logout", "vault"]).await;
    assert_eq!(said, "Logged out of `vault`.\n");
    assert_eq!(vault.state().revocations[0]["token"], "refresh-t0ken-1-x");
    let said = commands(&server, &["list"]).await;
    assert!(said.contains("not logged in"), "{said}");
    let said = fails(&server, &["logout", "vault"]).await;
    assert!(said.contains("nobody is logged in to `vault`"), "{said}");
    server.is_stopped_and_started_again().await;
    let result = hears(server.client()).await;
    assert!(result.contains("no operator has logged in"), "{result}");
}

async fn an_agent_whose_server_has_no_login_reads_the_command(server: TestServer) {
    let vault = AuthorizationServer::start_for(&server, "").await;
    let alice = server.human("treasurer").await;
    alice.says(script().turn(json!({"echo_tools": true}))).await;
    let tools = alice.transcript().await.pop().expect("an answer");
    assert!(tools.contains("vault__login_required"), "{tools}");
    assert_eq!(
        hears(server.client()).await,
        "vault__login_required failed: the MCP server `vault` requires a login: no operator has logged in; an operator has to run \
         `adjutant mcp login vault`"
    );
    // Nothing is sent to a server without a token.
    assert_eq!(vault.state().calls, [""; 0]);
}

async fn a_login_for_another_address_is_not_used(server: TestServer) {
    let vault = logged_in(&server).await;
    server.is_reconfigured("/mcp\"", "/mcp?of=another\"").await;
    let result = hears(server.client()).await;
    assert!(result.contains("the login is for another address"), "{result}");
    assert_eq!(vault.state().calls, [""; 0]);
}

async fn a_tenant_uses_its_own_login_and_others_that_of_all(server: TestServer) {
    let keys = server.is_protected_with("", "[tenants.acme]\n").await;
    server.is_stopped().await;
    let vault = AuthorizationServer::start().await;
    let base = &vault.base;
    let path = server.configuration();
    let old = std::fs::read_to_string(&path).expect("a configuration");
    let section = format!(
        "{old}\n[mcp_servers.vault]\nurl = \"{base}/mcp\"\n[mcp_servers.vault.oauth]\ngrant = \"authorization_code\"\n\
         [agents.treasurer]\nmodel = \"scripted:lab\"\ntools = [\"vault/*\"]\n"
    );
    std::fs::write(&path, section).expect("it can be written");
    logs_in_with(&server, &[]).await;
    logs_in_with(&server, &["--tenant", "acme"]).await;
    let said = fails(&server, &["login", "vault", "--tenant", "other"]).await;
    assert!(said.contains("[tenants.other]"), "{said}");
    server.is_stopped_and_started_again().await;
    opens_for(keys.client("ann")).await;
    assert_eq!(last_call(&vault), "Bearer access-t0ken-2-x");
    opens_for(keys.client("root-of-other")).await;
    assert_eq!(last_call(&vault), "Bearer access-t0ken-1-x");
    server.is_stopped().await;
    commands(&server, &["logout", "vault", "--tenant", "acme"]).await;
    // The revocation has ended all logins at the servers of the test.
    logs_in_with(&server, &[]).await;
    server.is_stopped_and_started_again().await;
    opens_for(keys.client("ann")).await;
    assert_eq!(last_call(&vault), "Bearer access-t0ken-3-x");
}

async fn secrets_of_a_login_are_neither_logged_nor_shown_nor_stored_in_clear(server: TestServer) {
    let vault = AuthorizationServer::start_for(&server, ENCRYPTION).await;
    let folder = server.configuration().parent().expect("a folder").to_owned();
    std::fs::write(folder.join("master.keys"), KEYS).expect("the keys");
    let mut printed = logs_in_with(&server, &[]).await;
    assert!(!printed.contains("stored in clear"), "{printed}");
    server.moves_into_a_process_that_logs("trace").await;
    opens(&server).await;
    vault.revokes_access_tokens();
    opens(&server).await;
    let stored = vault.secrets();
    assert_eq!(stored.len(), 4, "both logins have two tokens");
    vault.ends_logins();
    printed.push_str(&opens(&server).await);
    let agents = server.client().get("/agents/treasurer").await;
    printed.push_str(&agents.body.to_string());
    printed.push_str(&server.log().text());
    for secret in vault.secrets() {
        assert!(!printed.contains(&secret), "{secret} is printed");
        assert!(!is_stored(&server, &secret).await, "{secret} is stored in clear");
    }
    server.is_stopped().await;
    printed = commands(&server, &["list"]).await;
    for secret in vault.secrets() {
        assert!(!printed.contains(&secret), "{secret} is printed");
    }
}

async fn a_configured_client_proves_its_identity(server: TestServer) {
    let client = "client_id = \"adjutant\"\nclient_secret = \"s3cret\"\nscopes = [\"a\", \"b\"]";
    let vault = AuthorizationServer::start_for(&server, client).await;
    logs_in_with(&server, &[]).await;
    opens(&server).await;
    vault.revokes_access_tokens();
    opens(&server).await;
    let state = vault.state();
    assert_eq!(state.registrations.len(), 0);
    assert_eq!(state.logins[0]["scope"], "a b");
    // The words `adjutant:s3cret`.
    let basic = Some("Basic YWRqdXRhbnQ6czNjcmV0".to_owned());
    assert_eq!(state.token_requests.len(), 2);
    for request in &state.token_requests {
        assert_eq!(request.0, basic);
        assert!(!request.1.contains_key("client_secret"), "{:?}", request.1);
    }
}

async fn logins_and_logouts_are_in_the_audit(server: TestServer) {
    let _vault = logged_in(&server).await;
    commands(&server, &["logout", "vault"]).await;
    let found = server.client().get("/audit?resource=mcp_server:vault").await.ok();
    let entries = found.as_array().expect("a list");
    let actions: Vec<&Value> = entries.iter().map(|entry| &entry["action"]).collect();
    assert_eq!(actions, ["mcp_servers:logout", "mcp_servers:login"]);
    assert_eq!(entries[0]["credential"], "server");
}

async fn the_check_of_connections_names_the_command(server: TestServer) {
    let vault = AuthorizationServer::start_for(&server, "").await;
    // Creates the tables.
    commands(&server, &["list"]).await;
    let checks = async || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_adjutant"));
        command.args(["check", "--connect", "--json", "--config"]);
        let output = command
            .arg(server.configuration())
            .output()
            .await
            .expect("it can be called");
        let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
        let all = report["checks"].as_array().expect("a list").clone();
        let found = all.into_iter().find(|check| check["kind"] == "mcp_server");
        found.expect("a check")
    };
    let check = checks().await;
    assert_eq!(check["status"], "fail", "{check}");
    assert_eq!(check["message"], "no operator has logged in", "{check}");
    assert_eq!(check["advice"], "run `adjutant mcp login vault`", "{check}");
    logs_in_with(&server, &[]).await;
    let check = checks().await;
    assert_eq!(check["status"], "ok", "{check}");
    assert_eq!(vault.state().calls, [""; 0]);
}

async fn a_login_that_lacks_a_scope_is_listed_and_the_next_login_asks_for_it_too(server: TestServer) {
    let vault = logged_in(&server).await;
    assert_eq!(opens(&server).await, "vault__open: open");
    let mut scopes = "vault:open".to_owned();
    for needed in ["vault:close", "vault:audit"] {
        vault.behaves(|manners| manners.call_needs = Some(needed));
        vault.state().refused_calls = 0;
        let result = opens(&server).await;
        assert!(result.contains("the MCP server `vault`"), "{result}");
        let lacks = format!("`{needed}`; the login does not have them");
        assert!(result.contains(&lacks), "{result}");
        assert!(result.contains("`adjutant mcp login vault`"), "{result}");
        assert_eq!(vault.state().refused_calls, 1, "another token has no other scopes");
        // New tokens of the login do not have the scope either, and it is not forgotten.
        vault.revokes_access_tokens();
        let result = opens(&server).await;
        assert!(result.contains(&lacks), "{result}");
        // Calls that do not need it are made.
        vault.behaves(|manners| manners.call_needs = None);
        assert_eq!(opens(&server).await, "vault__open: open");
        vault.behaves(|manners| manners.call_needs = Some(needed));
        server.is_stopped().await;
        let said = commands(&server, &["list"]).await;
        assert!(said.contains(&format!("missing scopes: `{needed}`\n")), "{said}");
        logs_in_with(&server, &[]).await;
        scopes = format!("{scopes} {needed}");
        assert_eq!(vault.state().logins.last().expect("a login")["scope"], scopes);
        let said = commands(&server, &["list"]).await;
        assert!(!said.contains("missing scopes"), "{said}");
        server.is_stopped_and_started_again().await;
        assert_eq!(opens(&server).await, "vault__open: open");
    }
}

async fn a_login_is_not_asked_for_more_than_the_configured_scopes(server: TestServer) {
    let vault = AuthorizationServer::start_for(&server, "scopes = [\"vault:open\"]").await;
    logs_in_with(&server, &[]).await;
    vault.behaves(|manners| manners.call_needs = Some("vault:close"));
    let result = opens(&server).await;
    let way_out = "an operator has to add `vault:close` to `scopes` in `[mcp_servers.vault.oauth]`, and to run \
                   `adjutant mcp login vault`";
    assert!(result.contains(way_out), "{result}");
    server.is_stopped().await;
    let said = logs_in_with(&server, &[]).await;
    assert!(said.contains("asked for the scopes `vault:close`"), "{said}");
    assert!(
        said.contains("`[mcp_servers.vault.oauth]` does not have them"),
        "{said}"
    );
    assert_eq!(vault.state().logins[1]["scope"], "vault:open");
    let said = commands(&server, &["list"]).await;
    assert!(said.contains("missing scopes: `vault:close`"), "{said}");
    server
        .is_reconfigured("[\"vault:open\"]", "[\"vault:open\", \"vault:close\"]")
        .await;
    let result = opens(&server).await;
    assert!(
        result.contains("the login does not have them: an operator has to run `adjutant mcp login vault`"),
        "{result}"
    );
    server.is_stopped().await;
    let said = logs_in_with(&server, &[]).await;
    assert!(!said.contains("asked for the scopes"), "{said}");
    assert_eq!(vault.state().logins[2]["scope"], "vault:open vault:close");
    server.is_stopped_and_started_again().await;
    assert_eq!(opens(&server).await, "vault__open: open");
}

async fn two_servers_refresh_a_token_once(server: TestServer) {
    let vault = logged_in(&server).await;
    let clock = stopped_clock();
    server.uses_clock(&clock).await;
    let twin = server.starts_twin().await;
    assert_eq!(opens(&server).await, "vault__open: open");
    assert_eq!(opens_for(twin.client.clone()).await, "vault__open: open");
    vault.behaves(|manners| manners.holds_refreshes = true);
    // The old token has expired, so that both need a new one.
    clock.advance(Duration::from_mins(61));
    let bob = Human::on_new_thread(twin.client.clone(), "treasurer").await;
    let second = async {
        vault.refresh_came.notified().await;
        let opening = script().calls(call("c1", "vault__open", json!({}))).says("done");
        let waiting = bob.says(opening);
        let releasing = async {
            let busy = async || {
                let search = json!({"status": "busy"});
                let threads = twin.client.post("/threads/search", search).await.ok();
                threads.as_array().is_some_and(|threads| threads.len() == 2)
            };
            eventually(busy).await;
            vault.behaves(|manners| manners.holds_refreshes = false);
            vault.refresh_may_go_on.notify_one();
        };
        tokio::join!(waiting, releasing)
    };
    let results = tokio::join!(opens(&server), second);
    assert_eq!(results.0, "vault__open: open");
    assert!(bob.transcript().await.contains(&"vault__open: open".to_owned()));
    assert_eq!(vault.count_of("refresh_token"), 1);
    assert!(!vault.state().was_reused);
    let calls = vault.state().calls.clone();
    assert_eq!(calls[2..], ["Bearer access-t0ken-2-x", "Bearer access-t0ken-2-x"]);
    twin.stops().await;
}

async fn a_running_server_notices_logins_and_logouts(server: TestServer) {
    let vault = AuthorizationServer::start_for(&server, "").await;
    let result = hears(server.client()).await;
    assert!(result.contains("no operator has logged in"), "{result}");
    logs_in_with(&server, &[]).await;
    assert_eq!(opens(&server).await, "vault__open: open");
    // The tokens stay valid at the servers of the test: the server has to forget them by itself.
    vault.behaves(|manners| manners.metadata = json!({"revocation_endpoint": null}));
    logs_in_with(&server, &[]).await;
    let said = commands(&server, &["logout", "vault"]).await;
    assert!(said.contains("has no address at which tokens are revoked"), "{said}");
    eventually(async || opens(&server).await.contains("no operator has logged in")).await;
}

async fn a_running_server_uses_the_scopes_of_a_new_login(server: TestServer) {
    let vault = logged_in(&server).await;
    vault.behaves(|manners| manners.call_needs = Some("vault:close"));
    let result = opens(&server).await;
    assert!(result.contains("`adjutant mcp login vault`"), "{result}");
    logs_in_with(&server, &[]).await;
    assert_eq!(opens(&server).await, "vault__open: open");
    assert_eq!(last_call(&vault), "Bearer access-t0ken-2-x");
}

async fn a_redirect_with_another_state_changes_nothing(server: TestServer) {
    let vault = AuthorizationServer::start_for(&server, "").await;
    let mut command = Running::begins(&server, &["login", "vault"]);
    let address = command.address().await;
    let redirect = address.query_pairs().find(|pair| pair.0 == "redirect_uri");
    let redirect = Url::parse(&redirect.expect("a redirect").1).expect("an address");
    for query in ["code=c&state=forged", "code=c", "error=access_denied&state=forged", ""] {
        let mut forged = redirect.clone();
        forged.set_query(Some(query));
        let page = browses(forged).await;
        assert_eq!(page.0, 400, "{query}: {}", page.1);
    }
    assert_eq!(vault.state().token_requests.len(), 0);
    assert_eq!(browses(address).await.0, 200);
    let ended = command.ends().await;
    assert!(ended.0, "{}", ended.1);
}

async fn a_redirect_of_another_authorization_server_fails_the_login(server: TestServer) {
    let vault = AuthorizationServer::start_for(&server, "").await;
    vault.behaves(|manners| manners.redirect = json!({"iss": "https://login.example.org"}));
    let failed = login_fails(&server).await;
    assert_eq!(failed.0, 400);
    assert!(
        failed.1.contains("another authorization server (`iss`)"),
        "{}",
        failed.1
    );
    assert_eq!(vault.state().token_requests.len(), 0);
}

async fn a_redirect_without_the_promised_issuer_fails_the_login(server: TestServer) {
    let vault = AuthorizationServer::start_for(&server, "").await;
    vault.behaves(|manners| manners.redirect = json!({"iss": null}));
    let failed = login_fails(&server).await;
    assert!(
        failed.1.contains("does not say from which authorization server"),
        "{}",
        failed.1
    );
    assert_eq!(vault.state().token_requests.len(), 0);
}

async fn a_login_that_the_user_refuses_fails_with_the_reason(server: TestServer) {
    let vault = AuthorizationServer::start_for(&server, "").await;
    vault.behaves(|manners| manners.redirect = json!({"code": null, "error": "access_denied"}));
    let failed = login_fails(&server).await;
    assert_eq!(failed.0, 400);
    assert!(failed.1.contains("refused the login: access_denied"), "{}", failed.1);
    let said = commands(&server, &["list"]).await;
    assert!(said.contains("not logged in"), "{said}");
}

async fn an_authorization_server_without_pkce_is_refused(server: TestServer) {
    let vault = AuthorizationServer::start_for(&server, "").await;
    for methods in [Value::Null, json!([]), json!(["plain"])] {
        vault.behaves(|manners| manners.metadata = json!({"code_challenge_methods_supported": methods}));
        let said = fails(&server, &["login", "vault"]).await;
        assert!(said.contains("does not say that it supports PKCE with S256"), "{said}");
    }
    assert_eq!(vault.state().registrations.len(), 0);
}

async fn an_authorization_server_that_registers_nobody_needs_a_client_id(server: TestServer) {
    let vault = AuthorizationServer::start_for(&server, "").await;
    vault.behaves(|manners| manners.metadata = json!({"registration_endpoint": null}));
    let said = fails(&server, &["login", "vault"]).await;
    assert!(said.contains("set `oauth.client_id`"), "{said}");
}

async fn metadata_that_are_too_large_or_of_a_wrong_form_are_refused(server: TestServer) {
    let vault = AuthorizationServer::start_for(&server, "").await;
    for (body, reason) in [
        (vec![b' '; 1 << 20], "larger than 65536 bytes"),
        (b"<html>".to_vec(), "the answer of its authorization server"),
        (b"[1]".to_vec(), "an unexpected form"),
        (b"{\"issuer\": 1}".to_vec(), "an unexpected form"),
        (
            "[".repeat(10_000).into_bytes(),
            "the answer of its authorization server",
        ),
    ] {
        vault.behaves(|manners| manners.raw_metadata = Some(body));
        let said = fails(&server, &["login", "vault"]).await;
        assert!(said.contains(reason), "{reason}: {said}");
    }
}

async fn metadata_of_another_server_are_refused(server: TestServer) {
    let vault = AuthorizationServer::start_for(&server, "").await;
    vault.behaves(|manners| manners.resource = json!({"resource": "https://mcp.example.org/mcp"}));
    let said = fails(&server, &["login", "vault"]).await;
    assert!(said.contains("its metadata are those of another server"), "{said}");
    vault.behaves(|manners| {
        manners.resource = json!({});
        manners.metadata = json!({"issuer": "https://login.example.org"});
    });
    let said = fails(&server, &["login", "vault"]).await;
    assert!(said.contains("are those of another one"), "{said}");
    vault.behaves(|manners| manners.metadata = json!({"token_endpoint": "ftp://login.example.org/token"}));
    let said = fails(&server, &["login", "vault"]).await;
    assert!(said.contains("must be an absolute http or https URL"), "{said}");
}

async fn the_address_can_be_pasted(server: TestServer) {
    let _vault = AuthorizationServer::start_for(&server, "").await;
    // A browser of another machine, which does not reach the address.
    let browser = adjutant::net::client_builder();
    let browser = browser
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .expect("a client");
    for (change, succeeds) in [("state=", false), ("", true)] {
        let mut command = Running::begins(&server, &["login", "vault", "--paste"]);
        let address = command.address().await;
        let response = browser.get(address).send().await.expect("an answer");
        let location = response.headers()["location"].to_str().expect("a text");
        let pasted = match change {
            "" => format!("{location}\n"),
            change => format!("{}\n", location.replace(change, "state=x")),
        };
        let mut input = command.child.stdin.take().expect("a pipe");
        input.write_all(pasted.as_bytes()).await.expect("it is read");
        let ended = command.ends().await;
        assert_eq!(ended.0, succeeds, "{}", ended.1);
    }
    assert_eq!(opens(&server).await, "vault__open: open");
}

async fn a_login_that_nobody_makes_ends_in_time(server: TestServer) {
    let _vault = AuthorizationServer::start_for(&server, "").await;
    let said = fails(&server, &["login", "vault", "--timeout", "1"]).await;
    assert!(said.contains("nobody logged in within 1 s"), "{said}");
}

async fn a_server_that_needs_no_login_is_named_with_those_that_do(server: TestServer) {
    let _vault = AuthorizationServer::start_for(&server, "").await;
    let said = fails(&server, &["login", "valt"]).await;
    assert!(said.contains("did you mean `vault`?"), "{said}");
}

async fn commands_about_logins_need_a_stopped_server_on_sqlite(server: TestServer) {
    let vault = AuthorizationServer::start_for(&server, "").await;
    server.client();
    assert_eq!(server.engine, Engine::Sqlite);
    let said = fails(&server, &["login", "vault"]).await;
    assert!(said.contains("A server is using the database: stop it first"), "{said}");
    assert_eq!(vault.state().logins.len(), 0, "the user is not asked before");
}
