use std::time::Duration;

use sqlx::query_scalar;

use super::{Db, on_both, read, write};
use crate::db::engine::on_engine;
use crate::db::{DbResult, RekeyTarget, Tx, mcp_logins};
use crate::domain::id::LoginVersion;
use crate::domain::identity::Tenant;
use crate::domain::mcp_login::{GivenTokens, LoginKey, LoginSecrets, LoginStatus, McpLogin};
use crate::domain::oauth_scopes::OAuthScopes;
use crate::domain::time::Timestamp;

on_both!(
    a_login_comes_back_as_it_went,
    a_refresh_is_claimed_by_one_process_and_replaces_only_what_was_read,
    a_claim_that_is_over_can_be_taken,
    secrets_are_sealed_and_sealed_anew,
    scopes_that_a_login_lacks_are_remembered_without_a_new_version,
);

/// A part of all tokens.
const MARKER: &str = "t0ken-0815";

fn given(number: u32) -> GivenTokens {
    GivenTokens {
        access: format!("access-{MARKER}-{number}"),
        refresh: Some(format!("refresh-{MARKER}-{number}")),
        lifetime: Some(Duration::from_secs(100)),
        scopes: OAuthScopes::default(),
    }
}

fn login(tenant: Option<&str>, server: &str) -> McpLogin {
    let tenant = tenant.map(|tenant| Tenant::stored(tenant.to_owned()));
    let mut login = McpLogin {
        status: LoginStatus {
            key: LoginKey::new(tenant.as_ref(), server),
            url: "https://a.test/mcp".to_owned(),
            issuer: "https://login.test".to_owned(),
            expires_at: None,
            is_renewable: false,
            logged_in_at: Timestamp(5),
            ended_at: None,
        },
        refresh_at: None,
        secrets: LoginSecrets {
            client_id: "client".to_owned(),
            client_secret: Some("s3cret".to_owned()),
            secret_in_form: true,
            token_url: "https://login.test/token".to_owned(),
            revocation_url: None,
            resource: "https://a.test/mcp".to_owned(),
            access_token: String::new(),
            refresh_token: None,
            missing_scopes: OAuthScopes::default(),
            added_scopes: OAuthScopes::default(),
        },
        version: LoginVersion::mint(),
    };
    login.take(given(1), Timestamp(5));
    login
}

async fn stored(db: &Db, tenant: Option<&str>, server: &str) -> McpLogin {
    let login = login(tenant, server);
    let new = login.clone();
    write!(db, |tx| mcp_logins::put(tx, &new));
    login
}

async fn found(db: &Db, key: &LoginKey) -> Option<McpLogin> {
    let key = key.clone();
    read!(db, |tx| mcp_logins::find(tx, &key))
}

async fn is_claimed(db: &Db, login: &McpLogin, now: i64, until: i64) -> bool {
    let login = login.clone();
    write!(db, |tx| mcp_logins::claim_refresh(
        tx,
        &login,
        Timestamp(now),
        Timestamp(until)
    ))
}

async fn is_replaced(db: &Db, login: &McpLogin, before: LoginVersion) -> bool {
    let login = login.clone();
    write!(db, |tx| mcp_logins::replace(tx, &login, before))
}

async fn secrets_as_stored(tx: &mut Tx<'_>) -> DbResult<String> {
    const SQL: &str = "select min(secrets) from mcp_logins";
    Ok(on_engine!(tx, |conn| query_scalar(SQL).fetch_one(conn).await)?)
}

async fn a_login_comes_back_as_it_went(db: Db) {
    let of_all = stored(&db, None, "vault").await;
    let of_acme = stored(&db, Some("acme"), "vault").await;
    let other = stored(&db, None, "agent/vault").await;
    assert_eq!(found(&db, &of_all.status.key).await.as_ref(), Some(&of_all));
    assert_eq!(found(&db, &of_acme.status.key).await.as_ref(), Some(&of_acme));
    let listed = read!(db, |tx| mcp_logins::list(tx));
    assert_eq!(
        listed,
        [other.status.clone(), of_all.status.clone(), of_acme.status.clone()]
    );
    // Another login takes the place of the first.
    let again = stored(&db, None, "vault").await;
    assert_eq!(found(&db, &again.status.key).await.as_ref(), Some(&again));
    let key = again.status.key.clone();
    assert!(write!(db, |tx| mcp_logins::delete(tx, &key)));
    assert_eq!(found(&db, &again.status.key).await, None);
    let key = again.status.key.clone();
    assert!(!write!(db, |tx| mcp_logins::delete(tx, &key)));
    assert_eq!(found(&db, &of_acme.status.key).await, Some(of_acme));
}

async fn a_refresh_is_claimed_by_one_process_and_replaces_only_what_was_read(db: Db) {
    let first = stored(&db, None, "vault").await;
    assert!(is_claimed(&db, &first, 10, 20).await);
    assert!(!is_claimed(&db, &first, 11, 21).await);
    let mut second = first.clone();
    second.take(given(2), Timestamp(12));
    assert!(is_replaced(&db, &second, first.version).await);
    assert_eq!(found(&db, &first.status.key).await.as_ref(), Some(&second));
    // The claim has ended, and the version before cannot be claimed or replaced any more.
    assert!(!is_claimed(&db, &first, 13, 23).await);
    let mut late = first.clone();
    late.take(given(3), Timestamp(13));
    assert!(!is_replaced(&db, &late, first.version).await);
    assert!(is_claimed(&db, &second, 13, 23).await);
    // A user has logged in again meanwhile.
    let again = stored(&db, None, "vault").await;
    assert!(!is_replaced(&db, &late, second.version).await);
    assert_eq!(found(&db, &first.status.key).await, Some(again));
}

async fn a_claim_that_is_over_can_be_taken(db: Db) {
    let login = stored(&db, None, "vault").await;
    assert!(is_claimed(&db, &login, 10, 20).await);
    assert!(!is_claimed(&db, &login, 19, 30).await);
    assert!(is_claimed(&db, &login, 20, 30).await);
    let released = login.clone();
    write!(db, |tx| mcp_logins::release_refresh(tx, &released));
    assert!(is_claimed(&db, &login, 21, 31).await);
}

async fn secrets_are_sealed_and_sealed_anew(db: Db) {
    let login = stored(&db, Some("acme"), "vault").await;
    let before = read!(db, |tx| secrets_as_stored(tx));
    assert_eq!(before.contains(MARKER), !db.is_sealing(), "{before}");
    if !db.is_sealing() {
        return;
    }
    db.rekey(RekeyTarget::NewDataKeys, |_, _| {}).await.expect("new keys");
    let after = read!(db, |tx| secrets_as_stored(tx));
    assert_ne!(before, after);
    assert!(!after.contains(MARKER), "{after}");
    assert_eq!(found(&db, &login.status.key).await, Some(login.clone()));
    db.rekey(RekeyTarget::Plain, |_, _| {}).await.expect("plain values");
    assert!(read!(db, |tx| secrets_as_stored(tx)).contains(MARKER));
}

async fn lacks(db: &Db, login: &McpLogin, scopes: &str) {
    let login = login.clone();
    let scopes = OAuthScopes::read(scopes);
    write!(db, |tx| mcp_logins::add_missing_scopes(tx, &login, &scopes));
}

async fn scopes_that_a_login_lacks_are_remembered_without_a_new_version(db: Db) {
    let first = stored(&db, None, "vault").await;
    let other = stored(&db, Some("acme"), "vault").await;
    assert!(read!(db, |tx| mcp_logins::missing_scopes(tx)).is_empty());
    assert!(is_claimed(&db, &first, 10, 20).await);
    lacks(&db, &first, "close").await;
    lacks(&db, &first, "audit close").await;
    let mut expected = first.clone();
    expected.secrets.missing_scopes = OAuthScopes::read("close audit");
    assert_eq!(found(&db, &first.status.key).await, Some(expected.clone()));
    assert_eq!(found(&db, &other.status.key).await, Some(other));
    let missing = read!(db, |tx| mcp_logins::missing_scopes(tx));
    assert_eq!(missing.len(), 1);
    assert_eq!(missing[&first.status.key], expected.secrets.missing_scopes);
    // The claim goes on, and the tokens of the refresh are stored.
    assert!(!is_claimed(&db, &first, 11, 21).await);
    let mut second = expected.clone();
    second.take(given(2), Timestamp(12));
    assert!(is_replaced(&db, &second, first.version).await);
    // A call with a token from before says nothing about the new one.
    lacks(&db, &first, "more").await;
    assert_eq!(found(&db, &first.status.key).await, Some(second));
}
