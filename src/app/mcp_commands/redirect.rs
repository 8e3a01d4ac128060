//! The address on this machine to which a browser is redirected at the end of a login (RFC 8252, section 7.3).

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::future::BoxFuture;
use reqwest::Url;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::domain::mcp_login::McpLogin;
use crate::tool::mcp::{AuthorizationCode, PendingLogin, RedirectAnswer};

/// The path of the address.
const PATH: &str = "/callback";
/// The time for the browser to receive its page at the end.
const LAST_PAGE: Duration = Duration::from_secs(5);

/// Waits for the redirect of a browser.
pub(super) struct Listener(TcpListener);

/// A request of a browser.
struct Redirected {
    query: String,
    page: oneshot::Sender<Page>,
}

/// The page that a browser gets.
struct Page {
    status: StatusCode,
    text: &'static str,
}

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        let headers = [
            (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
            (header::CACHE_CONTROL, "no-store"),
            // The address has the code.
            (header::REFERRER_POLICY, "no-referrer"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ];
        (self.status, headers, self.text).into_response()
    }
}

const FOREIGN: Page = Page {
    status: StatusCode::BAD_REQUEST,
    text: "This is not the answer to the login that waits: its state is another one. Nothing was changed.\n",
};
const DONE: Page = Page {
    status: StatusCode::OK,
    text: "Logged in. You can close this page.\n",
};
const FAILED: Page = Page {
    status: StatusCode::BAD_REQUEST,
    text: "The login has failed. The command says why. You can close this page.\n",
};

/// The redirect of this login, while the browser waits for its page.
pub(super) struct AnsweredRedirect {
    code: Result<AuthorizationCode, String>,
    page: oneshot::Sender<Page>,
    serving: BoxFuture<'static, ()>,
    done: CancellationToken,
}

impl Listener {
    /// Listens on a port of this machine; on a free one if it is zero.
    pub(super) async fn bind(port: u16) -> std::io::Result<Self> {
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map(Self)
    }

    /// Returns the address for redirects.
    pub(super) fn address(&self) -> anyhow::Result<Url> {
        Ok(Url::parse(&format!("http://{}{PATH}", self.0.local_addr()?))?)
    }

    /// Waits for the redirect of a login. Others are refused, so that a page of another origin cannot end the login.
    pub(super) async fn next_answer(self, pending: &PendingLogin) -> AnsweredRedirect {
        let (sender, mut redirects) = mpsc::channel::<Redirected>(8);
        let done = CancellationToken::new();
        let router = Router::new().route(PATH, get(take)).with_state(Arc::new(sender));
        let serving = axum::serve(self.0, router).with_graceful_shutdown(done.clone().cancelled_owned());
        let mut serving: BoxFuture<'static, ()> = Box::pin(async move {
            // An error of the listener is a login that never ends, which has a time limit.
            let _ = serving.await;
        });
        loop {
            let next = tokio::select! {
                () = &mut serving => None,
                next = redirects.recv() => next,
            };
            let Some(redirected) = next else {
                return std::future::pending().await;
            };
            let Redirected { query, page } = redirected;
            let code = match pending.read_redirect(&query) {
                RedirectAnswer::Foreign => {
                    // A browser that has gone needs no page.
                    drop(page.send(FOREIGN));
                    continue;
                }
                RedirectAnswer::Refused(reason) => Err(reason),
                RedirectAnswer::Granted(code) => Ok(code),
            };
            return AnsweredRedirect {
                code,
                page,
                serving,
                done,
            };
        }
    }
}

async fn take(State(redirects): State<Arc<mpsc::Sender<Redirected>>>, RawQuery(query): RawQuery) -> Page {
    let (page, shown) = oneshot::channel();
    let query = query.unwrap_or_default();
    if redirects.send(Redirected { query, page }).await.is_err() {
        return FAILED;
    }
    shown.await.unwrap_or(FAILED)
}

impl AnsweredRedirect {
    /// Makes a login of the code, and shows the browser whether that has worked.
    pub(super) async fn finish(
        self,
        exchange: impl AsyncFnOnce(AuthorizationCode) -> anyhow::Result<McpLogin>,
    ) -> anyhow::Result<McpLogin> {
        let login = match self.code {
            Ok(code) => exchange(code).await,
            Err(reason) => Err(anyhow!(reason)),
        };
        drop(self.page.send(if login.is_ok() { DONE } else { FAILED }));
        self.done.cancel();
        // The result does not depend on the page.
        let _ = tokio::time::timeout(LAST_PAGE, self.serving).await;
        login
    }
}
