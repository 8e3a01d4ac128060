//! The HTTP side of the server. It translates between HTTP and the rooms behind it, and decides nothing.
//!
//! A handler parses the request ([`extract`], [`wire`]: every 422 is made there), calls `runtime` for changes or `db`
//! and `events` for reads, and answers with a shape of [`wire`] or with an [`error::ApiError`], the only place that
//! knows the status of an error.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::handler::Handler;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use axum::{Json, Router};
use futures::FutureExt;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::{PathItemExt, paste, routes};

use crate::auth::Authenticator;
use crate::db::{Db, RowAccess};
use crate::domain::identity::Identity;
use crate::domain::panic::panic_text;
use crate::domain::quota::Quotas;
use crate::domain::time::Clock;
use crate::domain::trace::Tracer;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::runtime::{
    AccessControl, Assistants, Audit, CallFiles, Crons, Definitions, Deliveries, Interrupts, Runs, Store, StoredBytes,
    StoredCallTokens, Threads,
};

pub mod access;
mod agents;
mod approvals;
mod assistants;
mod audit;
mod authentication;
mod bodies;
mod body_guard;
mod call;
mod client;
mod compaction;
mod connections;
mod console;
mod cors;
mod crons;
mod deadline;
mod deliveries;
pub mod diagnostic;
pub mod error;
pub mod export;
pub mod extract;
mod history;
mod idempotency;
mod interrupts;
mod keys;
mod mcp;
pub mod openapi;
mod origins;
mod rate_limits;
mod request_metrics;
mod requests;
mod response_budget;
mod run_stream;
mod runs;
mod search_turns;
mod shared_check;
mod socket_messages;
mod state;
mod stateless;
mod store;
pub mod stream;
mod stream_limits;
mod subagents;
mod system;
mod thread_events;
mod threads;
mod unknown_keys;
mod user_budgets;
pub mod users;
mod wait;
pub mod wire;

pub use bodies::BodyLimits;
pub use client::ClientId;
pub use connections::{max_for_descriptors as max_connections_for_descriptors, serve};
pub use cors::CorsSettings;
pub use origins::{HostRules, LOOPBACK, OriginRules, TenantSites};
pub use response_budget::ResponseBudget;
pub use stream_limits::{StreamLimiter, StreamLimits};

use access::{Api, AppState};
use bodies::BodyReader;
use error::ApiError;
use mcp::McpEndpoint;
use rate_limits::RateLimits;
use requests::RequestRecorder;
use thread_events::socket::SocketLimits;

/// The parts of the server that handlers use. They get them as an [`Api`], with the caller.
pub struct ApiParts {
    /// Decides what callers may do.
    pub access: AccessControl,
    /// Records who did what.
    pub audit: Audit,
    /// The database.
    pub db: Db,
    /// The logs of the threads.
    pub events: Events,
    /// Starts and cancels runs.
    pub runs: Runs,
    /// Crons.
    pub crons: Crons,
    /// Webhook deliveries.
    pub deliveries: Deliveries,
    /// Threads and their states.
    pub threads: Threads,
    /// Open interrupts and their answers.
    pub interrupts: Interrupts,
    /// Assistants.
    pub assistants: Assistants,
    /// Agent definitions.
    pub definitions: Definitions,
    /// The Store: items beyond a thread.
    pub store: Store,
    /// Finds out who sends a request.
    pub auth: Authenticator,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The metrics.
    pub metrics: Metrics,
    /// Records traces.
    pub tracer: Tracer,
    /// Limits the number of open streams.
    pub streams: StreamLimiter,
    /// The memory budget of large responses.
    pub answers: ResponseBudget,
    /// The quotas for stored bytes.
    pub stored: StoredBytes,
    /// The tokens with which tools read what they may of the run that calls them.
    pub call_tokens: StoredCallTokens,
    /// The files that tools read of the agents that call them.
    pub call_files: CallFiles,
    /// The quotas of accounts, and the prices of models.
    pub quotas: Arc<Quotas>,
    /// The settings of the HTTP side.
    pub settings: ApiSettings,
}

/// The settings of the HTTP side.
#[derive(Debug, Clone)]
pub struct ApiSettings {
    /// The limits of request bodies.
    pub bodies: BodyLimits,
    /// The interval of heartbeats on waiting responses and idle streams.
    pub heartbeat: Duration,
    /// The CORS settings.
    pub cors: CorsSettings,
    /// The host names of the server, and of all tenants.
    pub hosts: HostRules,
    /// The pages and the host names of single tenants.
    pub sites: TenantSites,
    /// The time limit of a request until its response starts.
    pub request: Duration,
    /// True if each request gets a line in the log.
    pub access_log: bool,
    /// True if browsers get the console.
    pub console: bool,
    /// True if the requests of clients are answered; otherwise only those about the health of the server.
    pub serves_clients: bool,
}

impl Default for ApiSettings {
    fn default() -> Self {
        Self {
            bodies: BodyLimits::default(),
            heartbeat: Duration::from_secs(5),
            cors: CorsSettings::default(),
            hosts: HostRules::new(&[], None),
            sites: TenantSites::default(),
            request: Duration::from_secs(30),
            access_log: false,
            console: true,
            serves_clients: true,
        }
    }
}

/// Defines the route table: the handlers of all endpoints, those of one path in one line.
///
/// The routes and the documents of the endpoints are made apart, since the documents need as much memory as the rest of a
/// server that rests, and few servers are ever asked for them.
macro_rules! endpoints {
    ($($($($segment:ident)::+),+;)+) => {
        /// Returns the routes of all endpoints.
        fn endpoint_routes() -> Router<AppState> {
            let mut router = Router::new();
            $($(router = add_route::<documented!($($segment)::+), _, _>(router, $($segment)::+);)+)+
            router
        }

        /// Returns the document with all endpoints, in their order.
        fn endpoint_documents() -> utoipa::openapi::OpenApi {
            OpenApiRouter::<AppState>::with_openapi(openapi::preface())
                $(.routes(routes!($($($segment)::+),+)))+
                .into_openapi()
        }
    };
}

/// The type that describes a handler; `#[utoipa::path]` defines it.
macro_rules! documented {
    ($module:ident::$handler:ident) => {
        paste! { $module::[<__path_ $handler>] }
    };
    ($outer:ident::$module:ident::$handler:ident) => {
        paste! { $outer::$module::[<__path_ $handler>] }
    };
}

/// Adds the route of a handler, by its path and methods in the document.
fn add_route<Documented, Arguments, H>(router: Router<AppState>, handler: H) -> Router<AppState>
where
    Documented: utoipa::Path,
    Arguments: 'static,
    H: Handler<Arguments, AppState>,
{
    let methods = Documented::methods().into_iter();
    let methods = methods.fold(MethodRouter::new(), |methods, method| {
        methods.on(method.to_method_filter(), handler.clone())
    });
    router.route(&Documented::path(), methods)
}

// In the order of the API document.
endpoints! {
    // The server itself.
    system::root;
    system::ok;
    system::ready;
    system::info;
    system::metrics;
    audit::list;
    // Callers and API keys.
    keys::me;
    keys::ticket;
    keys::create, keys::list;
    keys::get, keys::revoke;
    keys::rotate;
    // The data of users.
    users::export;
    users::delete;
    // Assistants.
    assistants::create;
    assistants::search;
    assistants::count;
    assistants::get, assistants::patch, assistants::delete;
    assistants::versions;
    assistants::use_version;
    assistants::graph;
    assistants::schemas;
    assistants::subgraphs;
    assistants::subgraph;
    // Agent definitions.
    agents::search;
    agents::validate;
    agents::get, agents::put, agents::delete;
    agents::versions;
    // Threads.
    threads::create;
    threads::search;
    threads::count;
    threads::get, threads::patch, threads::delete;
    threads::copy;
    threads::prune;
    threads::storage;
    threads::stream::follow;
    // The state of a thread and its history.
    state::get, state::update;
    state::at;
    state::at_posted;
    state::history, state::history_posted;
    compaction::compact;
    // Runs on a thread.
    runs::create, runs::list;
    runs::wait;
    runs::stream;
    runs::get, runs::delete;
    runs::join;
    runs::join_stream;
    runs::cancel;
    subagents::children;
    subagents::tree;
    subagents::state;
    // The stream of a thread, and commands to it.
    thread_events::commands::post;
    thread_events::socket::get, thread_events::sse::post;
    // Stateless runs.
    stateless::create;
    stateless::batch;
    stateless::wait;
    stateless::stream;
    stateless::cancel;
    // Crons.
    crons::create;
    crons::search;
    crons::count;
    crons::get, crons::patch, crons::delete;
    crons::create_for_thread;
    // Webhook deliveries.
    deliveries::list;
    deliveries::get;
    deliveries::redeliver;
    // Interrupts.
    interrupts::pending;
    interrupts::list;
    interrupts::get;
    interrupts::resolve;
    approvals::list;
    approvals::revoke;
    // The Store.
    store::get, store::put, store::delete;
    store::search;
    store::namespaces;
    // The endpoints with which tools read the run that calls them.
    call::state;
    call::files;
    call::file_content;
    call::item;
    call::search_items;
    // Agents as tools of MCP clients.
    mcp::get, mcp::post, mcp::delete;
}

/// The routes. They are the same for all servers of a process, of which tests start thousands.
static ROUTES: LazyLock<Router<AppState>> = LazyLock::new(endpoint_routes);

/// The router with all middleware.
pub fn router(api: ApiParts) -> Router {
    let settings = api.settings.clone();
    let checks = RequestChecks {
        serves_clients: settings.serves_clients,
        origins: settings.cors.origins.clone(),
        hosts: settings.hosts.clone(),
        sites: settings.sites.clone(),
        auth: api.auth.clone(),
        audit: api.audit.clone(),
        call_tokens: api.call_tokens.clone(),
        rates: Arc::new(RateLimits::new(Arc::clone(&api.quotas), Arc::clone(&api.clock))),
        bodies: BodyReader::new(settings.bodies, api.events.clone()),
        deadline: settings.request,
        mcp: Arc::new(McpEndpoint::new(&settings)),
    };
    let recorder = RequestRecorder {
        tracer: api.tracer.clone(),
        metrics: api.metrics.clone(),
        access_log: settings.access_log,
    };
    let console = match settings.console {
        true => console::pages(),
        false => Router::new(),
    };
    ROUTES
        .clone()
        .merge(openapi::pages(api.auth.is_on()))
        .merge(console)
        .fallback(no_route)
        .method_not_allowed_fallback(no_route)
        // Each layer costs several allocations for a request, so there are few of them.
        .layer((
            from_fn_with_state(Arc::new(recorder), requests::record),
            cors::layer(&settings.cors),
            from_fn_with_state(Arc::new(checks), admit),
        ))
        .with_state(AppState::new(api))
}

/// The checks of a request before its handler runs, and the limits of the handler.
struct RequestChecks {
    serves_clients: bool,
    origins: OriginRules,
    hosts: HostRules,
    sites: TenantSites,
    auth: Authenticator,
    audit: Audit,
    call_tokens: StoredCallTokens,
    rates: Arc<RateLimits>,
    bodies: BodyReader,
    deadline: Duration,
    mcp: Arc<McpEndpoint>,
}

impl RequestChecks {
    async fn check(&self, request: &mut Request) -> Result<(), ApiError> {
        origins::check(&self.origins, &self.hosts, request)?;
        match authentication::is_of_call(request) {
            true => authentication::identify_call(&self.call_tokens, &self.rates, request).await?,
            false => authentication::identify(&self.auth, &self.rates, request).await?,
        }
        let Some(caller) = caller_of(request) else {
            return Ok(());
        };
        let checked = self.sites.check(&caller.tenant, request);
        if let Err(refusal) = &checked {
            // Boxed, since few requests need the room.
            Box::pin(audit::record_foreign_site(&self.audit, &caller, request, refusal)).await?;
        }
        checked
    }

    /// Runs the handler of an admitted request within its limits. A panic is an error of the server.
    async fn handle(self: Arc<Self>, mut request: Request, next: Next) -> Response {
        let caller = caller_of(&request);
        let is_safe = request.method().is_safe();
        // The limit is enforced where bodies are read.
        DefaultBodyLimit::disable().apply(&mut request);
        request.extensions_mut().insert(Arc::clone(&self.mcp));
        // Boxed, since each function that takes a future has room for it several times, and the whole is copied.
        let handling = Box::pin(async {
            match AssertUnwindSafe(next.run(request)).catch_unwind().await {
                Ok(response) => response,
                Err(panic) => panicked(panic),
            }
        });
        let handling = audit::wait_for_entries(&self.audit, caller.as_deref(), handling);
        deadline::limit(self.deadline, is_safe, handling).await
    }
}

/// Refuses requests from foreign origins or hosts and from unknown callers, and the requests of clients on a server that
/// only works on runs. Reads the bodies of the others and handles them.
async fn admit(State(checks): State<Arc<RequestChecks>>, mut request: Request, next: Next) -> Response {
    if !checks.serves_clients && !HEALTH_PATHS.contains(&request.uri().path()) {
        return ApiError::not_served().into_response();
    }
    let mut response = match checks.check(&mut request).await {
        Ok(()) => {
            if request.headers().contains_key(header::UPGRADE) {
                // Commands over a WebSocket count like requests and their bodies do.
                request.extensions_mut().insert(SocketLimits {
                    bodies: checks.bodies.clone(),
                    rates: Arc::clone(&checks.rates),
                });
            }
            let caller = caller_of(&request);
            let access = caller.as_deref().map(RowAccess::of_caller);
            let handler_checks = Arc::clone(&checks);
            let handle = move |request| handler_checks.handle(request, next);
            let handling = Box::pin(checks.bodies.admit(request, handle));
            let response = in_access(access, handling).await;
            let response = naming(caller.as_ref(), response);
            authentication::end_with_key(&checks.auth, caller, response)
        }
        Err(error) => {
            let caller = caller_of(&request);
            naming(caller.as_ref(), bodies::refuse(request, error).await)
        }
    };
    // Browsers must not guess the content type of a response.
    response
        .headers_mut()
        .insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Returns the caller of a request, if it is known.
fn caller_of(request: &Request) -> Option<Arc<Identity>> {
    request.extensions().get::<Arc<Identity>>().cloned()
}

/// Returns a response with its caller, whom the access log names.
fn naming(caller: Option<&Arc<Identity>>, mut response: Response) -> Response {
    if let Some(caller) = caller {
        response.extensions_mut().insert(Arc::clone(caller));
    }
    response
}

/// Handles a request, and sends the response, with the access of the caller to the database. A request without a caller is
/// one for a public page, and has none.
async fn in_access(access: Option<RowAccess>, handling: impl Future<Output = Response>) -> Response {
    let Some(access) = access else {
        return handling.await;
    };
    let response = access.clone().scope(handling).await;
    body_guard::bind(response, access)
}

/// The paths that a server without clients answers.
const HEALTH_PATHS: [&str; 3] = ["/ok", "/ready", "/metrics"];

/// The response to a request whose path does not exist: it is sent to the same path without the slash at its end, or refused.
async fn no_route(uri: Uri) -> Response {
    match without_slash(&uri) {
        Some(place) => (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, place)]).into_response(),
        None => ApiError::no_route().into_response(),
    }
}

/// Returns a path that ends with a slash without it, if there is one. It is relative, so that it leads to no other host, and also
/// through proxies that remove the beginning of paths.
fn without_slash(uri: &Uri) -> Option<HeaderValue> {
    let path = uri.path().strip_suffix('/')?;
    let (_, last) = path.rsplit_once('/').filter(|(_, last)| !last.is_empty())?;
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    HeaderValue::from_str(&format!("../{last}{query}")).ok()
}

/// The response to a request whose handler panicked.
fn panicked(panic: Box<dyn std::any::Any + Send>) -> Response {
    let text = panic_text(panic.as_ref());
    ApiError::fault(&format!("a handler panicked: {text}")).into_response()
}

/// The result of a handler that answers with JSON.
type JsonResult<T> = Result<Json<T>, ApiError>;
