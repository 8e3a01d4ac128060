//! A run changes hands: from a server that leaves in good order, that dies, or that only slept too long.

use std::sync::Arc;
use std::time::Duration;

use super::chance::Chance;
use super::client::Client;
use super::effects::EffectLog;
use super::process::{Environment, KillableServer};
use super::{PATIENCE, measured, scenario};
use crate::support::Engine;

/// A client with a thread of its own, whose chance is always the same.
fn somebody(house: &Arc<KillableServer>) -> Client {
    Client::of(house, Chance::of(1, 1), uuid::Uuid::new_v4().to_string())
}

async fn no_call_is_in_doubt(engine: Engine) {
    let Some(ground) = Environment::fresh(engine).await else {
        return;
    };
    let house = KillableServer::build(&ground, &EffectLog::open().await).await;
    let right = measured(&house, Chance::of(1, 0)).await;
    for calls in 1..=right.seen.called {
        house.desk.forgets();
        let mut client = somebody(&house);
        let mark = format!("m{calls}");
        let wish = scenario::wish(&mark);
        let leaving = {
            let house = Arc::clone(&house);
            tokio::spawn(async move {
                house.desk.waits_for(|seen| seen.called >= calls).await;
                house.is_stopped_and_started_again().await;
            })
        };
        tokio::time::timeout(PATIENCE, client.has_its_way(&wish))
            .await
            .expect("the run comes to its end");
        leaving.await.expect("the server left in good order");
        client.has_its_way(&wish).await;
        let wrong = scenario::complaints(&client, &mark, &house.desk.effects(), &right.outcome).await;
        assert_eq!(
            wrong.expect("nobody disturbs"),
            [""; 0],
            "after {calls} calls:\n{}",
            house.log()
        );
        assert_eq!(client.decided, [], "after {calls} calls:\n{}", house.log());
    }
    house.is_torn_down().await;
    ground.clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_leaves_in_good_order_leaves_no_call_in_doubt_on_sqlite() {
    no_call_is_in_doubt(Engine::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_leaves_in_good_order_leaves_no_call_in_doubt_on_postgres() {
    no_call_is_in_doubt(Engine::Postgres).await;
}

/// Two servers on one database, whose agents call the same tools.
async fn neighbours() -> Option<(Arc<Environment>, Arc<KillableServer>, Arc<KillableServer>)> {
    let ground = Environment::fresh(Engine::Postgres).await?;
    let desk = EffectLog::open().await;
    let first = KillableServer::build(&ground, &desk).await;
    let second = KillableServer::build(&ground, &desk).await;
    Some((ground, first, second))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_server_goes_on_with_the_runs_of_a_dead_one() {
    let Some((ground, first, second)) = neighbours().await else {
        return;
    };
    let right = measured(&first, Chance::of(1, 0)).await;
    first.desk.forgets();
    let mut client = somebody(&first);
    let wish = scenario::wish("m1");
    client.makes_a_thread().await.expect("nobody disturbs");
    client.begins(&wish).await.expect("nobody disturbs");
    first.desk.waits_for(|seen| seen.called >= 3).await;
    first.is_killed().await;
    client.turns_to(&second);
    tokio::time::timeout(PATIENCE, client.has_its_way(&wish))
        .await
        .expect("the neighbour goes on");
    let wrong = scenario::complaints(&client, "m1", &second.desk.effects(), &right.outcome).await;
    assert_eq!(wrong.expect("nobody disturbs"), [""; 0], "{}", second.log());
    second.is_torn_down().await;
    ground.clear().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_slept_too_long_writes_nothing_and_its_clients_read_on() {
    let Some((ground, first, second)) = neighbours().await else {
        return;
    };
    let right = measured(&first, Chance::of(1, 0)).await;
    for calls in 1..=4 {
        first.desk.forgets();
        first.forgets_what_it_said();
        // However slow this machine is, the server has work left when it falls asleep.
        first.desk.holds_back_from(calls);
        let mut client = somebody(&first);
        let mark = format!("m{calls}");
        let wish = scenario::wish(&mark);
        client.makes_a_thread().await.expect("nobody disturbs");
        // Both hear of a run that waits; it has to be the first one's.
        second.sleeps().await;
        let run = client.begins(&wish).await.expect("nobody disturbs");
        let mut reader = Client::of(&first, Chance::of(1, 1), client.thread.clone());
        let reading = tokio::spawn(async move { reader.follows(&run).await.is_ok() });
        // Once the reader reads: what it asks for while the server falls asleep may be refused.
        first
            .desk
            .waits_for(|seen| seen.called >= calls && seen.events > 0)
            .await;
        first.sleeps().await;
        second.wakes().await;
        first.desk.lets_go();
        let before = first.desk.seen().called;
        client.turns_to(&second);
        let story = tokio::spawn(async move {
            client.has_its_way(&wish).await;
            client
        });
        // The neighbour is at work, and now there are two who believe that the run is theirs.
        let woken = async {
            second.desk.waits_for(|seen| seen.called > before).await;
            first.wakes().await;
        };
        let woken = tokio::time::timeout(PATIENCE, woken).await;
        assert!(
            woken.is_ok(),
            "nobody takes the run over after {calls} calls:\n{}\n{}",
            first.log(),
            second.log()
        );
        let client = tokio::time::timeout(PATIENCE, story)
            .await
            .expect("it comes to its end")
            .expect("a good end");
        // By its number, or since Postgres had closed the transaction in which it slept.
        first
            .says_one_of(&[
                "another process has taken the run over",
                "the database failed under a run",
            ])
            .await;
        let wrong = scenario::complaints(&client, &mark, &second.desk.effects(), &right.outcome).await;
        assert_eq!(
            wrong.expect("nobody disturbs"),
            [""; 0],
            "{}\n{}",
            first.log(),
            second.log()
        );
        let read = tokio::time::timeout(Duration::from_secs(20), reading)
            .await
            .expect("the reader comes to the end");
        assert!(read.expect("no panic"), "the stream broke off:\n{}", first.log());
    }
    first.is_torn_down().await;
    second.is_torn_down().await;
    ground.clear().await;
}
