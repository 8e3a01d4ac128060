//! The cost of the server's own parts, with the scripted model in process and without HTTP.
//!
//! `cargo bench` runs all benchmarks, `cargo bench -- steps commits` some. They are one program, since linking takes
//! longer than running. Postgres is measured, too, if `ADJUTANT_TEST_POSTGRES_URL` names an empty database.

mod access;
mod commits;
mod lab;
mod meter;
mod readers;
mod steps;
mod stream;
mod thread;

use adjutant::db::RowAccess;
use futures::future::BoxFuture;
use lab::Lab;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A benchmark with its name; prints its own results.
type Benchmark = (&'static str, for<'l> fn(&'l Lab) -> BoxFuture<'l, ()>);

const BENCHMARKS: [Benchmark; 6] = [
    ("steps", |lab| Box::pin(steps::measure(lab))),
    ("stream", |lab| Box::pin(stream::measure(lab))),
    ("thread", |lab| Box::pin(thread::measure(lab))),
    ("readers", |lab| Box::pin(readers::measure(lab))),
    ("commits", |lab| Box::pin(commits::measure(lab))),
    ("access", |lab| Box::pin(access::measure(lab))),
];

#[tokio::main]
async fn main() {
    // Cargo adds `--bench`; arguments without a dash name benchmarks.
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    for url in lab::databases() {
        for (name, measure) in BENCHMARKS {
            if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
                let measuring = async {
                    let lab = Lab::open(url.as_deref()).await;
                    println!("\n{name}, on {:?}", lab.db.engine());
                    measure(&lab).await;
                    lab.close().await;
                };
                RowAccess::Server.scope(measuring).await;
            }
        }
    }
}
