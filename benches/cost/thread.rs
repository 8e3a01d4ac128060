//! The bytes written by a run on a long thread, which must not grow with the length of the conversation.

use adjutant::domain::id::ThreadId;
use adjutant::sqlite::{SqliteConnectOptions, SqliteConnection};
use serde_json::json;

use crate::lab::Lab;
use crate::meter::{Cost, count, line, written};

/// The number of turns in one measurement; database pages and the write-ahead log grow in leaps.
const WINDOW: usize = 20;

pub(crate) async fn measure(lab: &Lab) {
    let Some(file) = &lab.file else {
        return println!("  (counted on SQLite only)");
    };
    let options = SqliteConnectOptions::of_file(file).read_only(true);
    let mut conn = options.open().expect("a second connection");
    let thread = ThreadId::mint();
    let script = json!({"script": [{"text": "So it is said. ".repeat(20)}]});
    let mut firsts = None;
    for window in 0..11 {
        let rows = stored(&mut conn).await;
        let bytes = written();
        let cost = Cost::of(WINDOW, 1, || lab.run(thread, &script)).await;
        let bytes = (written() - bytes) / count(WINDOW);
        let rows = (stored(&mut conn).await - rows) / count(WINDOW);
        if window == 0 || window == 10 {
            let name = format!("turns {} to {}", window * WINDOW + 1, (window + 1) * WINDOW);
            let numbers = [
                (rows, "B stored/run"),
                (bytes, "B written/run"),
                (cost.cpu(), "ms CPU/run"),
            ];
            line(&name, &numbers);
            let (first_rows, first_bytes, first_cpu) = *firsts.get_or_insert((rows, bytes, cost.cpu()));
            if window > 0 {
                line(
                    "  so it grew to",
                    &[
                        (rows / first_rows, "x"),
                        (bytes / first_bytes, "x"),
                        (cost.cpu() / first_cpu, "x"),
                    ],
                );
            }
        }
    }
}

/// Returns the bytes of all rows and index entries.
async fn stored(conn: &mut SqliteConnection) -> f64 {
    let sum = sqlx::query_scalar::<_, i64>("select coalesce(sum(payload), 0) from dbstat")
        .fetch_one(conn)
        .await;
    u32::try_from(sum.expect("SQLite was built with dbstat")).map_or(f64::NAN, f64::from)
}
