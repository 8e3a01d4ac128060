//! What things cost: the server's own parts with the scripted model in process, and no HTTP in between.
//!
//! `cargo bench` asks all questions, `cargo bench -- steps commits` some. It is one program, not one for each question,
//! since linking it takes longer than running it. Postgres is asked as well when `ADJUTANT_TEST_POSTGRES_URL` names an
//! empty database.

mod commits;
mod lab;
mod meter;
mod readers;
mod steps;
mod stream;
mod thread;

use futures::future::BoxFuture;
use lab::Lab;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A question, by name; it prints its own answer.
type Question = (&'static str, for<'l> fn(&'l Lab) -> BoxFuture<'l, ()>);

const QUESTIONS: [Question; 5] = [
    ("steps", |lab| Box::pin(steps::ask(lab))),
    ("stream", |lab| Box::pin(stream::ask(lab))),
    ("thread", |lab| Box::pin(thread::ask(lab))),
    ("readers", |lab| Box::pin(readers::ask(lab))),
    ("commits", |lab| Box::pin(commits::ask(lab))),
];

#[tokio::main]
async fn main() {
    // Cargo adds `--bench`; what does not begin with a dash names a question.
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    for url in lab::databases() {
        for (name, ask) in QUESTIONS {
            if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
                let lab = Lab::open(url.as_deref()).await;
                println!("\n{name}, on {:?}", lab.db.engine());
                ask(&lab).await;
                lab.close().await;
            }
        }
    }
}
