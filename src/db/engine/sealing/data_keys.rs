//! The table of data keys: creates, reads, rewraps and destroys the keys of tenants.
//!
//! A transaction that needs a key which no committed transaction has stored creates it, and uses it for itself alone: if
//! it is rolled back, nothing may be sealed with that key. The next transaction reads the key back.

use std::sync::{Arc, PoisonError};

use secrecy::ExposeSecret;
use sqlx::{query, query_as, query_scalar};
use uuid::Uuid;

use super::master_keys::WrappedKey;
use super::{DataKey, KEY_LEN, KeyBytes, KeyChange, Keyring, Sealer, Sealing, fill_random};
use crate::db::engine::error::{DbError, DbResult};
use crate::db::engine::{Tx, on_engine};
use crate::db::row::from_row;
use crate::domain::access::Ownership;
use crate::domain::id::ThreadId;

/// The keys that a transaction has looked up.
#[derive(Default)]
pub(in crate::db) struct TxKeys {
    /// The keys of tenants that are not known to be committed.
    own: Vec<(String, Arc<DataKey>)>,
    /// The thread that was looked up last, with the sealer of its tenant.
    last_thread: Option<(ThreadId, Sealer)>,
}

impl TxKeys {
    /// Returns the sealer of the thread that was looked up last, if it is this one.
    pub(in crate::db) fn of_last_thread(&self, thread: ThreadId) -> Option<Sealer> {
        let (last, sealer) = self.last_thread.as_ref()?;
        (*last == thread).then(|| sealer.clone())
    }

    /// Keeps the sealer of the thread that was looked up last.
    pub(in crate::db) fn keep_last_thread(&mut self, thread: ThreadId, sealer: Sealer) {
        self.last_thread = Some((thread, sealer));
    }
}

from_row! {
    struct KeyRow {
        key_id: Uuid,
        tenant: String,
        master: String,
        wrapped: Option<Vec<u8>>,
        change: i64,
    }
}

impl KeyRow {
    /// Unwraps the key; none if its tenant was deleted.
    fn unwrap_with(self, keyring: &Keyring) -> DbResult<Option<DataKey>> {
        let Some(bytes) = self.wrapped else { return Ok(None) };
        let wrapped = WrappedKey {
            id: self.key_id,
            tenant: self.tenant,
            master: self.master,
            bytes,
        };
        let key = keyring.masters.unwrap_key(&wrapped);
        let key = key.ok_or_else(|| cannot_unwrap(&wrapped, keyring))?;
        Ok(Some(DataKey::new(wrapped.id, &key)))
    }
}

/// Returns the error that a data key cannot be unwrapped.
fn cannot_unwrap(wrapped: &WrappedKey, keyring: &Keyring) -> DbError {
    let WrappedKey { tenant, master, .. } = wrapped;
    let known: Vec<&str> = keyring.masters.names().collect();
    DbError::Sealed(match known.contains(&master.as_str()) {
        true => format!(
            "the key `{master}` of [encryption] does not open the values of the tenant `{tenant}`: it is another key than \
             the one under which they were encrypted"
        ),
        false => format!(
            "the values of the tenant `{tenant}` are encrypted under the key `{master}`, which is not among the keys of \
             [encryption] ({}): add it",
            known.join(", ")
        ),
    })
}

/// Selects the name of a master key under which values are encrypted.
pub(in crate::db) const MASTER_IN_USE: &str = "select master from data_keys where wrapped is not null limit 1";

const SELECT_CHANGED: &str =
    "select key_id, tenant, master, wrapped, change from data_keys where change > $1 order by change, key_id";

impl Sealing {
    /// Reads the data keys that have changed since they were read last. To be called where a transaction begins, before it
    /// has written: what is read must be committed.
    pub(in crate::db) async fn refresh(&self, tx: &mut Tx<'_>) -> DbResult<()> {
        let Some(keyring) = &self.0 else { return Ok(()) };
        let known = keyring.last_change();
        let of_key = keyring.last_change_of_key();
        let newest = last_change(tx).await?;
        keyring.follow(tx, known, of_key, newest).await
    }

    /// Reads the changed data keys like [`Self::refresh`], where a transaction begins that may write. If the database has
    /// lost its newest changes, as in a failover to a standby that was behind, the keys that seal are read anew: nothing may
    /// be sealed with a key that is stored no more.
    pub(in crate::db) async fn refresh_to_write(&self, tx: &mut Tx<'_>) -> DbResult<()> {
        let Some(keyring) = &self.0 else { return Ok(()) };
        // In this order: all that is known was committed before the statement begins.
        let mut known = keyring.last_change();
        let of_key = keyring.last_change_of_key();
        let newest = last_change(tx).await?;
        // Another server may have used the numbers of the lost changes again.
        let is_lost = newest.number < known.number || newest.number == known.number && newest != known;
        if is_lost {
            known = keyring.forget_changes(known, newest);
        }
        keyring.follow(tx, known, of_key, newest).await
    }

    /// Checks that this server can open what is sealed in the database, and reads all data keys.
    ///
    /// # Errors
    /// [`DbError::Sealed`] when a master key is missing or wrong.
    pub(in crate::db) async fn check(&self, tx: &mut Tx<'_>) -> DbResult<()> {
        if let Some(keyring) = &self.0 {
            let rows: Vec<KeyRow> = on_engine!(tx, |conn| query_as(SELECT_CHANGED).bind(0_i64).fetch_all(conn).await)?;
            return rows.into_iter().try_for_each(|row| keyring.learn(row));
        }
        let master: Option<String> = on_engine!(tx, |conn| query_scalar(MASTER_IN_USE).fetch_optional(conn).await)?;
        match master {
            None => Ok(()),
            Some(master) => Err(DbError::Sealed(format!(
                "the database has values that are encrypted under the key `{master}`: add the section [encryption] with \
                 this key"
            ))),
        }
    }
}

impl Keyring {
    /// Returns the newest change that was read.
    fn last_change(&self) -> KeyChange {
        self.known.read().unwrap_or_else(PoisonError::into_inner).change
    }

    /// Returns the newest change of a key that was read.
    fn last_change_of_key(&self) -> KeyChange {
        self.known.read().unwrap_or_else(PoisonError::into_inner).key_change
    }

    /// Forgets which keys seal new values, since the database has lost some of them: those that it has are read anew. Returns
    /// the change that is known then.
    fn forget_changes(&self, known: KeyChange, newest: KeyChange) -> KeyChange {
        tracing::warn!(
            known = known.number,
            number = newest.number,
            "the database has lost data keys; those that it has are read anew"
        );
        let nothing = KeyChange::default();
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.by_tenant.clear();
        known.change = nothing;
        known.key_change = nothing;
        nothing
    }

    /// Reads the keys that have changed since `known`, if there are any; `newest` is the last change. Other servers may have
    /// made changes after a failover that has lost the known ones: then the known change `of_key` is lost, too.
    async fn follow(
        &self,
        tx: &mut Tx<'_>,
        mut known: KeyChange,
        of_key: KeyChange,
        newest: KeyChange,
    ) -> DbResult<()> {
        if newest.number <= known.number {
            return Ok(());
        }
        if known.number > 0 && !has_change(tx, of_key).await? {
            known = self.forget_changes(known, newest);
        }
        let after = known.number;
        let rows: Vec<KeyRow> = on_engine!(tx, |conn| query_as(SELECT_CHANGED).bind(after).fetch_all(conn).await)?;
        for row in rows {
            // A server with new master keys must not stop the others: only the values under those are out of reach.
            if let Err(error) = self.learn(row) {
                tracing::error!(%error, "a data key cannot be read");
            }
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.change = known.change.max(newest);
        Ok(())
    }

    /// Adds or removes the key of a committed row.
    fn learn(&self, row: KeyRow) -> DbResult<()> {
        let id = row.key_id;
        let change = KeyChange {
            number: row.change,
            newest: Some(id),
        };
        let tenant = row.tenant.clone();
        let key = row.unwrap_with(self)?.map(Arc::new);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        match key {
            Some(key) => {
                known.by_id.insert(id, Arc::clone(&key));
                known.by_tenant.insert(tenant, key);
            }
            None => {
                known.by_id.remove(&id);
                known.destroyed.insert(id);
                if known.by_tenant.get(&tenant).is_some_and(|key| key.id == id) {
                    known.by_tenant.remove(&tenant);
                }
            }
        }
        known.change = known.change.max(change);
        known.key_change = known.key_change.max(change);
        Ok(())
    }
}

impl Tx<'_> {
    /// Returns the sealer for values of this tenant. The first one of a tenant creates its data key.
    pub(in crate::db) async fn sealer(&mut self, tenant: &str) -> DbResult<Sealer> {
        let Some(keyring) = self.sealing.0.clone() else {
            return Ok(Sealer::default());
        };
        if let Some(key) = keyring.of_tenant(tenant) {
            return Ok(Sealer(Some(key)));
        }
        let own = self.keys.own.iter().find(|(of, _)| of == tenant);
        if let Some((_, key)) = own {
            return Ok(Sealer(Some(Arc::clone(key))));
        }
        let key = match find(self, &keyring, tenant).await? {
            Some(key) => key,
            None => create_unless_stored(self, &keyring, tenant).await?,
        };
        let key = Arc::new(key);
        keyring.add(&key);
        self.keys.own.push((tenant.to_owned(), Arc::clone(&key)));
        Ok(Sealer(Some(key)))
    }

    /// Returns the sealer for values of the server, which belong to no tenant.
    pub(in crate::db) async fn sealer_of_server(&mut self) -> DbResult<Sealer> {
        match self.sealing.is_on() {
            false => Ok(Sealer::default()),
            true => self.sealer(Ownership::of_server().tenant.as_str()).await,
        }
    }
}

/// Returns the last change of the table.
async fn last_change(tx: &mut Tx<'_>) -> DbResult<KeyChange> {
    const SQL: &str = "select coalesce(max(number), 0) as number, \
        (select key_id from data_keys order by change desc, key_id desc limit 1) as newest from data_key_changes";
    tx.statement(SQL).fetch_one().await
}

/// Returns whether the table still has a change of a key, or a later one of it.
async fn has_change(tx: &mut Tx<'_>, change: KeyChange) -> DbResult<bool> {
    const SQL: &str = "select exists (select 1 from data_keys where key_id = $1 and change >= $2)";
    let Some(newest) = change.newest else { return Ok(true) };
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(newest)
        .bind(change.number)
        .fetch_one(conn)
        .await)?)
}

/// Returns the newest key of a tenant.
async fn find(tx: &mut Tx<'_>, keyring: &Keyring, tenant: &str) -> DbResult<Option<DataKey>> {
    const SQL: &str = "select key_id, tenant, master, wrapped, change from data_keys \
        where tenant = $1 and wrapped is not null order by change desc limit 1";
    let row: Option<KeyRow> = on_engine!(tx, |conn| query_as(SQL).bind(tenant).fetch_optional(conn).await)?;
    Ok(row.map(|row| row.unwrap_with(keyring)).transpose()?.flatten())
}

/// Creates a key for a tenant, unless another transaction has just done so.
async fn create_unless_stored(tx: &mut Tx<'_>, keyring: &Keyring, tenant: &str) -> DbResult<DataKey> {
    let change = note_change(tx).await?;
    // Other servers that create a key have waited for the end of this transaction, or this one for theirs.
    match find(tx, keyring, tenant).await? {
        Some(key) => Ok(key),
        None => create(tx, keyring, tenant, change).await,
    }
}

/// Counts a change of the table, and returns its number. Other transactions that change it wait for the end of this one.
async fn note_change(tx: &mut Tx<'_>) -> DbResult<i64> {
    const SQL: &str = "insert into data_key_changes (one, number) values (1, 1) \
        on conflict (one) do update set number = data_key_changes.number + 1 returning number";
    Ok(on_engine!(tx, |conn| query_scalar(SQL).fetch_one(conn).await)?)
}

async fn create(tx: &mut Tx<'_>, keyring: &Keyring, tenant: &str, change: i64) -> DbResult<DataKey> {
    const SQL: &str = "insert into data_keys (key_id, tenant, master, wrapped, change) values ($1, $2, $3, $4, $5)";
    let mut bytes = Box::new([0; KEY_LEN]);
    fill_random(bytes.as_mut_slice())?;
    let bytes = KeyBytes::new(bytes);
    let mut id = [0; 16];
    fill_random(&mut id)?;
    let id = uuid::Builder::from_random_bytes(id).into_uuid();
    let wrapped = keyring.masters.wrap(id, tenant, bytes.expose_secret())?;
    on_engine!(tx, |conn| query(SQL)
        .bind(id)
        .bind(tenant)
        .bind(keyring.masters.first())
        .bind(wrapped)
        .bind(change)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(DataKey::new(id, &bytes))
}

/// Wraps all data keys under the first master key. Returns the number of those that were not.
pub(in crate::db) async fn rewrap(tx: &mut Tx<'_>) -> DbResult<u64> {
    const FIND: &str = "select key_id, tenant, master, wrapped, change from data_keys \
        where master <> $1 and wrapped is not null order by key_id";
    const UPDATE: &str = "update data_keys set master = $2, wrapped = $3, change = $4 where key_id = $1";
    let Some(keyring) = tx.sealing.0.clone() else {
        return Ok(0);
    };
    let first = keyring.masters.first().to_owned();
    let change = note_change(tx).await?;
    let rows: Vec<KeyRow> = on_engine!(tx, |conn| query_as(FIND).bind(&first).fetch_all(conn).await)?;
    let mut rewrapped = 0;
    for row in rows {
        let Some(bytes) = row.wrapped else { continue };
        let old = WrappedKey {
            id: row.key_id,
            tenant: row.tenant,
            master: row.master,
            bytes,
        };
        let key = keyring
            .masters
            .unwrap_key(&old)
            .ok_or_else(|| cannot_unwrap(&old, &keyring))?;
        let wrapped = keyring.masters.wrap(old.id, &old.tenant, key.expose_secret())?;
        on_engine!(tx, |conn| query(UPDATE)
            .bind(old.id)
            .bind(&first)
            .bind(wrapped)
            .bind(change)
            .execute(conn)
            .await
            .map(drop))?;
        rewrapped += 1;
    }
    Ok(rewrapped)
}

/// Creates a new data key for each tenant that has one. Values that are written from now on are sealed with the new keys.
pub(in crate::db) async fn renew(tx: &mut Tx<'_>) -> DbResult<()> {
    const TENANTS: &str = "select distinct tenant from data_keys where wrapped is not null order by tenant";
    let Some(keyring) = tx.sealing.0.clone() else {
        return Ok(());
    };
    let change = note_change(tx).await?;
    let tenants: Vec<String> = on_engine!(tx, |conn| query_scalar(TENANTS).fetch_all(conn).await)?;
    for tenant in tenants {
        create(tx, &keyring, &tenant, change).await?;
    }
    Ok(())
}

/// Destroys the data keys of a tenant: what was sealed with them can never be opened again, wherever a copy of it is.
/// Returns their number.
pub(in crate::db) async fn destroy(tx: &mut Tx<'_>, tenant: &str) -> DbResult<u64> {
    const SQL: &str = "update data_keys set wrapped = null, change = $2 where tenant = $1 and wrapped is not null";
    let change = note_change(tx).await?;
    Ok(on_engine!(tx, |conn| query(SQL)
        .bind(tenant)
        .bind(change)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?)
}

/// Deletes all data keys, when nothing is sealed any more.
pub(in crate::db) async fn forget_all(tx: &mut Tx<'_>) -> DbResult<()> {
    const SQL: &str = "delete from data_keys";
    note_change(tx).await?;
    on_engine!(tx, |conn| query(SQL).execute(conn).await.map(drop))?;
    Ok(())
}
