//! The validation of a configuration that has the right types.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::quotas::check_prices;
use super::shared_checks::{MIN_SWEEP_MINUTES, host_problem, origin_problem, provider_problems};
use super::{AuthSection, ClusterSection, Config, EncryptionSection, ProviderSection, Server, ServerRole, TimeToLive};
use crate::definition::check::check_agent;
use crate::definition::provider::PROVIDERS;
use crate::definition::words::{is_word, timeout_problem};
use crate::definition::{Diagnostic, FieldPath, Segment, ValidationContext};
use crate::domain::name_patterns::is_pattern;
use crate::domain::postgres_url::PostgresUrl;

/// The maximum of most times, in seconds: a day.
const MAX_TIME_S: f64 = 86_400.0;
/// The shortest lease on a run, in seconds. A shorter one would end while its renewal waits for a slow disk.
const MIN_LEASE_S: f64 = 1.0;
/// The shortest interval between renewals of leases, in seconds. Each is a transaction.
const MIN_HEARTBEAT_S: f64 = 0.1;
/// The shortest interval between two looks at the files with agent definitions, in seconds.
const MIN_RELOAD_S: f64 = 0.05;
/// The shortest time after which a stream sends a keep-alive, in seconds.
const MIN_KEEP_ALIVE_S: f64 = 0.1;
/// The least number of connections to Postgres: one for writes, and one for reads.
const MIN_CONNECTIONS: u32 = 2;
/// Smaller blobs would take more space than they save.
const MIN_BLOB_CHARS: usize = 1024;
const MAX_BLOB_CHARS: usize = 1 << 30;
/// The maximum number of connections to Postgres.
const MAX_CONNECTIONS: u32 = 1000;
/// The maximum time limit of a run, in seconds: a year.
const MAX_RUN_S: f64 = 31_536_000.0;
/// The longest time for which entries of the audit are kept, in days: a hundred years.
const MAX_KEEP_DAYS: f64 = 36_500.0;
/// The shortest interval between messages with pieces of answers, in seconds.
const MIN_LIVE_INTERVAL_S: f64 = 0.005;
/// The longest such interval, in seconds. Readers rely on the sender of pieces for longer.
const MAX_LIVE_INTERVAL_S: f64 = 1.0;
/// The largest number of characters before the subjects in NATS.
const MAX_NATS_PREFIX: usize = 64;
/// The least memory for pieces in NATS, in bytes: two of the largest messages.
const MIN_NATS_STREAM_BYTES: u32 = 2 * 1024 * 1024;

/// The maximum time to live, in minutes: a hundred years.
const MAX_TTL_MINUTES: f64 = 52_560_000.0;

/// Validates the whole configuration. Sections that could not be read count as declared, so that one mistake is
/// reported once.
pub(super) fn check(config: &Config, unread: &[Diagnostic]) -> Vec<Diagnostic> {
    let mut check = Check { findings: Vec::new() };
    check.server(config);
    check.runtime(config);
    check.cluster(config);
    check.agents_api(config);
    check.audit(config);
    check.time_to_live("threads", config.threads.ttl.as_ref());
    check.time_to_live("checkpointer", config.checkpointer.ttl.as_ref());
    check.storage(config);
    let sections = [
        ("webhooks", config.webhooks.problems()),
        ("peers", config.peers.problems()),
        ("answers", config.answers.problems()),
        ("telemetry", config.telemetry.problems()),
        (
            "encryption",
            config
                .encryption
                .as_ref()
                .map(EncryptionSection::problems)
                .unwrap_or_default(),
        ),
    ];
    for (section, problems) in sections {
        for (field, reason) in problems {
            let field = FieldPath::of([section].into_iter().chain(field));
            check.findings.push(Diagnostic::error(field, reason));
        }
    }
    check.findings.extend(config.peers.check_headers());
    check.findings.extend(config.auth.iter().flat_map(AuthSection::check));
    check.findings.extend(config.quotas.check());
    check.findings.extend(check_prices(&config.prices));
    if let Err(error) = tracing_subscriber::EnvFilter::try_new(&config.log.filter) {
        check.error(&["log", "filter"], format!("is not a log filter: {error}"));
    }
    for (name, provider) in &config.providers {
        check.provider(name, provider);
    }
    for (name, tool) in &config.tools {
        let field = FieldPath::of(["tools", name.as_str()]);
        check
            .findings
            .extend(tool.check(name).into_iter().map(|finding| finding.under(&field)));
    }
    for (name, server) in &config.mcp_servers {
        let field = FieldPath::of(["mcp_servers", name.as_str()]);
        check
            .findings
            .extend(server.check(name).into_iter().map(|finding| finding.under(&field)));
    }
    for (name, server) in &config.tool_servers {
        let field = FieldPath::of(["tool_servers", name.as_str()]);
        if config.mcp_servers.contains_key(name) {
            let message = "is the name of an MCP server, too: `[mcp_servers]` and `[tool_servers]` share their names";
            check.findings.push(Diagnostic::error(field.clone(), message));
        }
        let found = server.check(name).into_iter();
        check.findings.extend(found.map(|finding| finding.under(&field)));
    }
    for (name, service) in &config.sandboxes {
        let field = FieldPath::of(["sandboxes", name.as_str()]);
        let found = service.check(name).into_iter();
        check.findings.extend(found.map(|finding| finding.under(&field)));
    }
    check.findings.extend(config.files.settings.embedded.check(config));
    let validation_context = partial_validation_context(config, unread);
    check.findings.extend(super::store::check(config, &validation_context));
    check
        .findings
        .extend(super::tenants::check(config, &validation_context));
    for (key, profile) in &config.profiles {
        let field = FieldPath::of(["profiles", key.as_str()]);
        check.findings.extend(
            profile
                .check(key, &validation_context)
                .into_iter()
                .map(|finding| finding.under(&field)),
        );
    }
    for (graph_id, agent) in &config.agents {
        let field = FieldPath::of(["agents", graph_id.as_str()]);
        let findings = check_agent(graph_id, agent, &validation_context).into_iter();
        check.findings.extend(findings.map(|finding| finding.under(&field)));
    }
    if config.agents.is_empty() && unread.is_empty() {
        let message = "there are none, so the server has no agent until one is defined over HTTP";
        check
            .findings
            .push(Diagnostic::warning(FieldPath::of(["agents"]), message));
    }
    check.findings
}

/// Returns the names that the agents of this configuration may refer to, including agents that are defined at
/// runtime.
pub fn validation_context(config: &Config) -> ValidationContext {
    partial_validation_context(config, &[])
}

/// Returns the same names for a configuration of which a part could not be read.
fn partial_validation_context(config: &Config, unread: &[Diagnostic]) -> ValidationContext {
    let mut validation_context = config.files.settings.embedded.names.clone();
    validation_context.tools.extend(config.tools.keys().cloned());
    validation_context.providers.extend(config.providers.keys().cloned());
    validation_context.agents = config.agents.keys().cloned().collect();
    let servers = config.mcp_servers.keys().chain(config.tool_servers.keys());
    validation_context.mcp_servers = servers.cloned().collect();
    validation_context.sandboxes.extend(config.sandboxes.keys().cloned());
    let built_in = PROVIDERS.iter().filter(|traits| traits.is_built_in);
    validation_context
        .providers
        .extend(built_in.map(|traits| traits.word.to_owned()));
    validation_context.clients = config.agents_api.rules();
    for finding in unread {
        if let [Segment::Key(section), Segment::Key(name), ..] = finding.field.0.as_slice() {
            match section.as_str() {
                "tools" => validation_context.tools.insert(name.clone()),
                "providers" => validation_context.providers.insert(name.clone()),
                "mcp_servers" | "tool_servers" => validation_context.mcp_servers.insert(name.clone()),
                "sandboxes" => validation_context.sandboxes.insert(name.clone()),
                "agents" => validation_context.agents.insert(name.clone()),
                _ => continue,
            };
        }
    }
    validation_context
}

/// The error for a server without authentication that other machines can reach.
pub const NEEDS_AUTH: &str = "can be reached by other machines, and this server has no authentication: anyone who can \
    reach it can do everything. Add a section [auth], or listen on 127.0.0.1, or, if a proxy in front of the server \
    authenticates its clients, give the option --insecure-no-auth (ADJUTANT_INSECURE_NO_AUTH=1)";

/// Returns whether other machines can reach the address. A host name is resolved only when it is bound.
fn is_public(listen: &str) -> bool {
    let address = listen.parse::<SocketAddr>();
    address.is_ok_and(|address| !address.ip().to_canonical().is_loopback())
}

struct Check {
    findings: Vec<Diagnostic>,
}

impl Check {
    fn error(&mut self, field: &[&str], message: impl Into<String>) {
        self.findings
            .push(Diagnostic::error(FieldPath::of(field.iter().copied()), message));
    }

    fn timeout(&mut self, field: &[&str], value: f64, most: f64) {
        if let Some(problem) = timeout_problem(value, most) {
            self.error(field, problem);
        }
    }

    fn interval(&mut self, field: &[&str], value: f64, least: f64) {
        if !(least..=MAX_TIME_S).contains(&value) {
            self.error(field, format!("must be from {least} to {MAX_TIME_S} seconds"));
        }
    }

    fn audit(&mut self, config: &Config) {
        let days = config.audit.keep_days;
        if !(0.0..=MAX_KEEP_DAYS).contains(&days) {
            let message = format!("must be at least 0, which means for ever, and at most {MAX_KEEP_DAYS} days");
            self.error(&["audit", "keep_days"], message);
        }
    }

    fn agents_api(&mut self, config: &Config) {
        let api = &config.agents_api;
        for (list, names) in [("tools", &api.tools), ("models", &api.models), ("agents", &api.agents)] {
            for (at, name) in names.iter().enumerate() {
                if !is_pattern(name) {
                    let field = FieldPath::of(["agents_api", list]).then(at);
                    let message = format!("`{name}` must be a name, or the beginning of names with a `*` after it");
                    self.findings.push(Diagnostic::error(field, message));
                }
            }
        }
    }

    fn time_to_live(&mut self, section: &str, ttl: Option<&TimeToLive>) {
        let Some(ttl) = ttl else { return };
        if !(ttl.default_ttl > 0.0 && ttl.default_ttl <= MAX_TTL_MINUTES) {
            let message = format!("must be more than 0 and at most {MAX_TTL_MINUTES} minutes");
            self.error(&[section, "ttl", "default_ttl"], message);
        }
        if !(MIN_SWEEP_MINUTES..=MAX_TTL_MINUTES).contains(&ttl.sweep_interval_minutes) {
            let message = format!("must be from {MIN_SWEEP_MINUTES} to {MAX_TTL_MINUTES} minutes");
            self.error(&[section, "ttl", "sweep_interval_minutes"], message);
        }
    }

    fn server(&mut self, config: &Config) {
        let server = &config.server;
        let port = server
            .listen
            .rsplit_once(':')
            .filter(|(host, _)| !host.is_empty())
            .map(|(_, port)| port);
        if port.is_none_or(|port| port.parse::<u16>().is_err()) {
            let message = format!("`{}` must be `host:port`, as in `127.0.0.1:8123`", server.listen);
            self.error(&["server", "listen"], message);
        }
        let settings = &config.files.settings;
        let is_open = config.auth.is_none() && !settings.insecure_no_auth;
        if is_open && !settings.does_not_listen && is_public(&server.listen) {
            self.error(&["server", "listen"], format!("`{}` {NEEDS_AUTH}", server.listen));
        }
        if server.max_body_bytes == 0 {
            self.error(&["server", "max_body_bytes"], "must be a whole number of at least 1");
        }
        if server.max_body_bytes_total < server.max_body_bytes {
            self.error(
                &["server", "max_body_bytes_total"],
                "must be at least `max_body_bytes`, so that the largest body fits",
            );
        }
        if server.max_connections == Some(0) {
            self.error(&["server", "max_connections"], "must be a whole number of at least 1");
        }
        self.timeout(&["server", "body_timeout_s"], server.body_timeout_s, MAX_TIME_S);
        for (at, name) in server.hosts.iter().enumerate() {
            if let Some(problem) = host_problem(name).filter(|_| name != "*") {
                let field = FieldPath::of(["server", "hosts"]).then(at);
                self.findings.push(Diagnostic::error(field, problem));
            }
        }
        let counts = [
            ("max_answer_bytes", server.max_answer_bytes == 0),
            ("max_streams_per_thread", server.max_streams_per_thread == 0),
            ("max_streams_per_client", server.max_streams_per_client == 0),
        ];
        for (name, _) in counts.into_iter().filter(|(_, is_zero)| *is_zero) {
            self.error(&["server", name], "must be a whole number of at least 1");
        }
        self.timeout(&["server", "request_s"], server.request_s, MAX_TIME_S);
        self.interval(&["server", "keep_alive_s"], server.keep_alive_s, MIN_KEEP_ALIVE_S);
        self.timeout(&["server", "shutdown_s"], server.shutdown_s, MAX_TIME_S);
        if !(server.drain_s >= 0.0 && (server.drain_s == 0.0 || server.drain_s < server.shutdown_s)) {
            let message = "must be at least 0 and less than `shutdown_s`, at which the server stops in any case";
            self.error(&["server", "drain_s"], message);
        }
        if !(server.cors_max_age_s > 0.0 && server.cors_max_age_s <= MAX_TIME_S) {
            let message = format!("must be more than 0 and at most {MAX_TIME_S} seconds");
            self.error(&["server", "cors_max_age_s"], message);
        }
        for (at, origin) in server.cors_origins.iter().enumerate() {
            if let Some(problem) = origin_problem(origin).filter(|_| origin != "*") {
                let field = FieldPath::of(["server", "cors_origins"]).then(at);
                self.findings.push(Diagnostic::error(field, problem));
            }
        }
        self.cors(server);
    }

    fn cors(&mut self, server: &Server) {
        let origins: BTreeSet<&String> = server.cors_origins.iter().collect();
        if origins.len() > 1 && server.cors_origins.iter().any(|origin| origin == "*") {
            self.error(
                &["server", "cors_origins"],
                "must be either `*` alone or a list of origins",
            );
        }
        let names_no_pages = |origin: &String| origin == "*" || origin == "loopback";
        if server.cors_credentials && server.cors_origins.iter().any(names_no_pages) {
            let message =
                "needs `cors_origins` that name the pages: with `*` and `loopback` others could act for a visitor";
            self.error(&["server", "cors_credentials"], message);
        }
        for (at, name) in server.cors_expose_headers.iter().enumerate() {
            if !is_word(name, 256, "") {
                let field = FieldPath::of(["server", "cors_expose_headers"]).then(at);
                self.findings.push(Diagnostic::error(
                    field,
                    format!("`{name}` must be the name of a header"),
                ));
            }
        }
    }

    fn runtime(&mut self, config: &Config) {
        let runtime = &config.runtime;
        if runtime.max_concurrent_runs == 0 {
            self.error(
                &["runtime", "max_concurrent_runs"],
                "must be a whole number of at least 1",
            );
        }
        let sizes = [
            ("max_calls", runtime.max_calls),
            ("max_calls_per_run", runtime.max_calls_per_run),
            ("max_file_bytes", runtime.max_file_bytes),
            ("max_state_bytes", runtime.max_state_bytes),
        ];
        for (name, given) in sizes {
            if given == 0 {
                self.error(&["runtime", name], "must be a whole number of at least 1");
            }
        }
        self.interval(&["runtime", "lease_s"], runtime.lease_s, MIN_LEASE_S);
        self.interval(&["runtime", "heartbeat_s"], runtime.heartbeat_s, MIN_HEARTBEAT_S);
        self.timeout(&["runtime", "max_run_s"], runtime.max_run_s, MAX_RUN_S);
        let counts = [
            ("max_queued_runs", runtime.max_queued_runs),
            ("max_queued_runs_per_thread", runtime.max_queued_runs_per_thread),
        ];
        for (name, _) in counts.into_iter().filter(|(_, count)| *count == 0) {
            self.error(&["runtime", name], "must be a whole number of at least 1");
        }
        if !(MIN_RELOAD_S..=MAX_TIME_S).contains(&runtime.reload_s) && runtime.reload_s != 0.0 {
            let message = format!("must be 0, which means never, or from {MIN_RELOAD_S} to {MAX_TIME_S} seconds");
            self.error(&["runtime", "reload_s"], message);
        }
        if runtime.heartbeat_s * 2.0 > runtime.lease_s {
            let message = "must be at most half of `lease_s`, so that one late heartbeat does not lose a lease";
            self.error(&["runtime", "heartbeat_s"], message);
        }
    }

    fn cluster(&mut self, config: &Config) {
        let role = config.cluster.role;
        if role != ServerRole::All && config.storage.url.is_sqlite() {
            let message = format!(
                "`{}` needs a Postgres in `[storage] url`: a SQLite database has one server, which does everything",
                role.word()
            );
            self.error(&["cluster", "role"], message);
        }
        let is_allowed = |interval: f64| (MIN_LIVE_INTERVAL_S..=MAX_LIVE_INTERVAL_S).contains(&interval);
        if !config.cluster.live_interval_s.is_none_or(is_allowed) {
            let message = format!("must be from {MIN_LIVE_INTERVAL_S} to {MAX_LIVE_INTERVAL_S} seconds");
            self.error(&["cluster", "live_interval_s"], message);
        }
        self.nats(config, cfg!(feature = "nats"));
    }

    /// Checks the settings of NATS; `is_built_in` if this program has its client.
    fn nats(&mut self, config: &Config, is_built_in: bool) {
        let cluster = &config.cluster;
        let is_word = |word: &str| {
            let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || ['-', '_'].contains(&letter);
            !word.is_empty() && word.chars().all(is_allowed)
        };
        if cluster.nats_prefix.len() > MAX_NATS_PREFIX || !cluster.nats_prefix.split('.').all(is_word) {
            let message = format!(
                "must have at most {MAX_NATS_PREFIX} characters: letters, digits, `-` and `_`, with periods between words"
            );
            self.error(&["cluster", "nats_prefix"], message);
        }
        if cluster.nats_stream_bytes != 0 && cluster.nats_stream_bytes < MIN_NATS_STREAM_BYTES {
            let message = format!("must be 0, or a whole number of at least {MIN_NATS_STREAM_BYTES}");
            self.error(&["cluster", "nats_stream_bytes"], message);
        }
        self.nats_files(cluster);
        let Some(url) = &cluster.nats else {
            return;
        };
        if let Err(reason) = url.servers() {
            self.error(&["cluster", "nats"], reason);
        }
        if !is_built_in {
            let message = "this program was built without NATS; use one with the feature `nats`";
            self.error(&["cluster", "nats"], message);
        }
        if config.storage.url.is_sqlite() {
            let message = "needs a Postgres in `[storage] url`: a SQLite database has one server, which sends no pieces to others";
            self.error(&["cluster", "nats"], message);
        }
    }

    /// Checks which files the settings of NATS name.
    fn nats_files(&mut self, cluster: &ClusterSection) {
        const CERT: &str = "nats_sslcert";
        const KEY: &str = "nats_sslkey";
        let certificates = [
            ("nats_sslrootcert", cluster.nats_sslrootcert.is_some()),
            (CERT, cluster.nats_sslcert.is_some()),
            (KEY, cluster.nats_sslkey.is_some()),
        ];
        let Some(url) = &cluster.nats else {
            let credentials = ("nats_credentials", cluster.nats_credentials.is_some());
            for (name, _) in certificates
                .into_iter()
                .chain([credentials])
                .filter(|(_, is_set)| *is_set)
            {
                self.error(&["cluster", name], "has no effect without `nats`");
            }
            return;
        };
        if url.servers().is_ok_and(|servers| !servers.are_encrypted()) {
            for (name, _) in certificates.into_iter().filter(|(_, is_set)| *is_set) {
                let message = "needs `tls://` in `nats`: a connection with `nats://` need not be encrypted";
                self.error(&["cluster", name], message);
            }
        }
        match (&cluster.nats_sslcert, &cluster.nats_sslkey) {
            (Some(_), None) => self.error(&["cluster", CERT], "needs `nats_sslkey`, the file with its key"),
            (None, Some(_)) => self.error(&["cluster", KEY], "needs `nats_sslcert`, the file with its certificate"),
            (Some(_), Some(_)) | (None, None) => {}
        }
    }

    fn storage(&mut self, config: &Config) {
        let storage = &config.storage;
        self.timeout(
            &["storage", "statement_timeout_s"],
            storage.statement_timeout_s,
            MAX_TIME_S,
        );
        self.timeout(&["storage", "connect_timeout_s"], storage.connect_timeout_s, MAX_TIME_S);
        if !(MIN_BLOB_CHARS..=MAX_BLOB_CHARS).contains(&storage.blob_min_chars) {
            let message = format!("must be a whole number from {MIN_BLOB_CHARS} to {MAX_BLOB_CHARS}");
            self.error(&["storage", "blob_min_chars"], message);
        }
        if !(MIN_CONNECTIONS..=MAX_CONNECTIONS).contains(&storage.connections) {
            let message = format!("must be a whole number from {MIN_CONNECTIONS} to {MAX_CONNECTIONS}");
            self.error(&["storage", "connections"], message);
        }
        if let Some(direct) = &storage.direct_url {
            if !direct.is_postgres() {
                self.error(&["storage", "direct_url"], "must begin with postgres://");
            }
            if !storage.url.is_postgres() {
                let message = "is the address of Postgres past a pooler, so `[storage] url` must be that of the pooler, and begin with postgres://";
                self.error(&["storage", "direct_url"], message);
            }
        }
        for (key, url) in [("url", Some(&storage.url)), ("direct_url", storage.direct_url.as_ref())] {
            let url = url.filter(|url| url.is_postgres());
            if let Some(Err(reason)) = url.map(|url| PostgresUrl::parse(url.expose())) {
                self.error(&["storage", key], reason);
            }
        }
        let is_known = storage.url.is_postgres() || storage.url.is_sqlite();
        if !is_known {
            // The URL may contain a password, so it is not repeated.
            self.error(
                &["storage", "url"],
                "must begin with sqlite:// (or be sqlite::memory:) or with postgres://",
            );
        }
    }

    fn provider(&mut self, name: &str, provider: &ProviderSection) {
        if !is_word(name, 64, ".") {
            let message = format!("the provider name `{name}` must be 1 to 64 letters, digits, `_`, `-` or `.`");
            self.error(&["providers", name], message);
        }
        if provider.kind.is_none() {
            let kinds: Vec<&str> = PROVIDERS.iter().map(|traits| traits.word).collect();
            let kinds = kinds.join(", ");
            self.error(&["providers", name, "kind"], format!("must be given: one of {kinds}"));
        }
        let caching = provider.prompt_caching.unwrap_or_default();
        if let Some(kind) = provider.kind.filter(|kind| !caching.fits(kind.protocol())) {
            let message = format!("does not fit `kind = \"{kind}\"`, whose requests have no place for it");
            self.error(&["providers", name, "prompt_caching"], message);
        }
        let field = FieldPath::of(["providers", name]);
        self.findings.extend(provider_problems(&field, provider));
    }
}
