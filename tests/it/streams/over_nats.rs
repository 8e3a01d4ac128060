//! Readers at another server than the one at which the run is active, with NATS between the servers.

use async_nats::Message;
use serde_json::{Value, json};

use super::other_servers::{begins, joins, metric, reads, text_of};
use crate::support::actors::Human;
use crate::support::command::command;
use crate::support::nats::{JETSTREAM, LOGIN, Nats, with_account};
use crate::support::sse::put_together;
use crate::support::{TestServer, eventually, on_postgres, script};

on_postgres! {
    a_piece_travels_over_nats_before_the_answer_is_complete,
    who_joins_in_the_middle_gets_the_beginning_from_the_stream_of_nats,
    without_jetstream_who_joins_in_the_middle_gets_the_beginning_from_the_server_at_work,
    a_reader_gets_everything_once_though_nats_is_killed_in_the_middle_of_an_answer,
    a_nats_that_is_away_at_the_start_is_named_with_what_to_do_and_hides_its_password,
    credentials_that_cannot_be_read_are_named,
    pieces_travel_over_a_nats_that_asks_for_credentials,
    two_clusters_on_one_nats_keep_apart,
    messages_of_another_version_and_garbage_on_nats_are_passed_over_and_counted,
    a_piece_too_large_for_a_notification_travels_over_nats,
    a_piece_too_large_for_nats_comes_with_the_whole_answer,
    pieces_on_nats_are_sealed_by_a_server_that_encrypts,
    the_check_of_connections_says_whether_nats_can_be_used,
}

/// Starts a NATS with these lines in its configuration, which the server uses; `None` if nats-server is not installed on this
/// machine.
async fn over_nats(server: &TestServer, lines: &str) -> Option<Nats> {
    let nats = Nats::starts_with(lines).await?;
    server.is_configured_with(&nats.section()).await;
    Some(nats)
}

/// Checks that a reader at another server gets a piece before the answer is complete.
pub(super) async fn a_piece_travels(server: &TestServer) {
    let twin = server.starts_twin().await;
    let dictation = server.models.will_be_dictated();
    let alice = server.human("openai").await;
    let run = begins(&alice).await;
    let mut there = joins(&twin.client, &alice, &run).await;
    dictation.says("one ");
    reads(&mut there, "one ").await;
    dictation.ends();
    there.rest().await;
    twin.stops().await;
}

async fn a_piece_travels_over_nats_before_the_answer_is_complete(server: TestServer) {
    let Some(_nats) = over_nats(&server, JETSTREAM).await else {
        return;
    };
    let twin = server.starts_twin().await;
    let dictation = server.models.will_be_dictated();
    let alice = server.human("openai").await;
    let run = begins(&alice).await;
    let mut there = joins(&twin.client, &alice, &run).await;
    let mut heard = vec![];
    for piece in ["one ", "two ", "three"] {
        dictation.says(piece);
        // The next piece waits until the reader has this one.
        heard.extend(reads(&mut there, piece).await);
    }
    dictation.ends();
    heard.extend(there.rest().await);
    assert_eq!(text_of(&heard), "one two three");
    let replayed = run.is_joined(Some("-1")).await.rest().await;
    assert_eq!(put_together(&heard), put_together(&replayed));
    twin.stops().await;
}

/// A reader at one server has two pieces when others join at further servers. Returns how many pieces the server at work
/// has sent before and after that.
async fn joins_late(server: &TestServer) -> [f64; 2] {
    let early = server.starts_twin().await;
    let late = server.starts_twin().await;
    let client = server.client();
    let sent = async || metric(&client, "adjutant_live_chunks_sent_total", None).await;
    let dictation = server.models.will_be_dictated();
    let alice = server.human("openai").await;
    let run = begins(&alice).await;
    let mut first = joins(&early.client, &alice, &run).await;
    dictation.says("one ");
    dictation.says("two ");
    reads(&mut first, "two ").await;
    let before = sent().await;
    let mut second = joins(&late.client, &alice, &run).await;
    let mut heard = reads(&mut second, "two ").await;
    assert_eq!(text_of(&heard), "one two ");
    let after = sent().await;
    dictation.says("three");
    reads(&mut first, "three").await;
    heard.extend(reads(&mut second, "three").await);
    dictation.ends();
    heard.extend(second.rest().await);
    assert_eq!(text_of(&heard), "one two three");
    first.rest().await;
    early.stops().await;
    late.stops().await;
    [before, after]
}

async fn who_joins_in_the_middle_gets_the_beginning_from_the_stream_of_nats(server: TestServer) {
    let Some(_nats) = over_nats(&server, JETSTREAM).await else {
        return;
    };
    let [before, after] = joins_late(&server).await;
    assert!(before > 1.5, "the pieces were sent: {before}");
    assert!((after - before).abs() < 0.5, "none is sent again: {before}, {after}");
}

async fn without_jetstream_who_joins_in_the_middle_gets_the_beginning_from_the_server_at_work(server: TestServer) {
    let Some(_nats) = over_nats(&server, "").await else {
        return;
    };
    let [before, after] = joins_late(&server).await;
    assert!(after > before + 0.5, "they are sent again: {before}, {after}");
    server.moves_into_a_process().await;
    server.log().gets_one_of(&["NATS keeps no pieces of answers"]).await;
    let text = server.log().text();
    assert!(text.contains("it has no JetStream") && text.contains("-js"), "{text}");
}

async fn a_reader_gets_everything_once_though_nats_is_killed_in_the_middle_of_an_answer(server: TestServer) {
    let Some(mut nats) = over_nats(&server, JETSTREAM).await else {
        return;
    };
    server.moves_into_a_process().await;
    let other = server.starts_second_process().await;
    let dictation = server.models.will_be_dictated();
    let alice = server.human("openai").await;
    let run = begins(&alice).await;
    let mut here = run.is_joined(Some("-1")).await;
    let mut there = joins(&other.client(), &alice, &run).await;
    dictation.says("one ");
    let mut heard = reads(&mut there, "one ").await;
    nats.is_killed();
    for server in [&server, &other] {
        server.log().gets_one_of(&["the connection to NATS is lost"]).await;
        let client = server.client();
        eventually(async || metric(&client, "adjutant_nats_disconnected", None).await > 0.5).await;
    }
    dictation.says("two ");
    reads(&mut here, "two ").await;
    nats.comes_back().await;
    // The reader gets what it has missed, and new pieces flow.
    heard.extend(reads(&mut there, "two ").await);
    dictation.says("three ");
    heard.extend(reads(&mut there, "three ").await);
    for server in [&server, &other] {
        let client = server.client();
        eventually(async || metric(&client, "adjutant_nats_disconnected", None).await < 0.5).await;
    }
    nats.is_killed();
    dictation.says("four");
    reads(&mut here, "four").await;
    dictation.ends();
    // Without NATS the reader gets the rest from the log.
    heard.extend(there.rest().await);
    assert_eq!(text_of(&heard), "one two three four");
    let replayed = run.is_joined(Some("-1")).await.rest().await;
    assert_eq!(put_together(&heard), put_together(&replayed));
    drop(here);
    other.is_stopped().await;
}

async fn a_nats_that_is_away_at_the_start_is_named_with_what_to_do_and_hides_its_password(server: TestServer) {
    let Some(mut nats) = Nats::starts_with(LOGIN).await else {
        return;
    };
    nats.is_killed();
    let address = nats.address();
    server
        .is_configured_with(&format!("[cluster]\nnats = \"nats://me:s3cret@{address}\"\n"))
        .await;
    server.moves_into_a_process_that_logs("debug").await;
    server.log().gets_one_of(&["NATS cannot be used"]).await;
    let text = server.log().text();
    let said = text.lines().find(|line| line.contains("NATS cannot be used"));
    let said = said.expect("a line");
    assert!(said.contains(&format!("nats://{address}")), "{said}");
    assert!(
        said.contains("start nats-server there, or correct `nats` in [cluster]"),
        "{said}"
    );
    // The server serves meanwhile, and connects as soon as it can.
    let values = server.human("plain").await.says(script().says("done")).await;
    assert_eq!(values["messages"][1]["content"], "done");
    nats.comes_back().await;
    server.log().gets_one_of(&["connected to NATS"]).await;
    assert!(!server.log().text().contains("s3cret"), "{}", server.log().text());
}

async fn credentials_that_cannot_be_read_are_named(server: TestServer) {
    let Some(nats) = Nats::starts().await else { return };
    let section = format!("{}nats_credentials = \"no.creds\"\n", nats.section());
    server.is_configured_with(&section).await;
    server.moves_into_a_process().await;
    server.log().gets_one_of(&["no.creds cannot be read"]).await;
    let text = server.log().text();
    assert!(text.contains("correct `nats_credentials` in [cluster]"), "{text}");
}

async fn pieces_travel_over_a_nats_that_asks_for_credentials(server: TestServer) {
    let (configuration, credentials) = with_account();
    let Some(nats) = Nats::starts_with(&configuration).await else {
        return;
    };
    let file = server.configuration().with_file_name("user.creds");
    std::fs::write(file, credentials).expect("the credentials");
    let section = format!("{}nats_credentials = \"user.creds\"\n", nats.section());
    server.is_configured_with(&section).await;
    a_piece_travels(&server).await;
}

async fn two_clusters_on_one_nats_keep_apart(server: TestServer) {
    let Some(nats) = Nats::starts().await else { return };
    let Some(stranger) = TestServer::start(server.engine).await else {
        return;
    };
    let mut wire = nats.hears("adjutant.*.wanted").await;
    let thread = uuid::Uuid::new_v4().to_string();
    let mut subjects = vec![];
    let mut readers = vec![];
    let mut twins = vec![];
    // Both have a thread of this id, at which a reader waits throughout.
    for cluster in [&server, &stranger] {
        cluster.is_configured_with(&nats.section()).await;
        let twin = cluster.starts_twin().await;
        let created = cluster.client().post("/threads", json!({"thread_id": thread})).await;
        created.ok();
        let path = format!("/threads/{thread}/stream");
        readers.push(twin.client.get_stream(&path, None).await);
        // The reader at the first cluster is announced again and again.
        let is_new = |message: &Message| message.payload.starts_with(b"1\nnew");
        let mut announced = wire.next().await;
        while !is_new(&announced) {
            announced = wire.next().await;
        }
        assert!(String::from_utf8_lossy(&announced.payload).contains(&thread));
        subjects.push(announced.subject.to_string());
        twins.push(twin);
    }
    assert_ne!(subjects[0], subjects[1]);
    let mut dictations = vec![];
    for (at, cluster) in [&server, &stranger].into_iter().enumerate() {
        let dictation = cluster.models.will_be_dictated();
        let alice = Human::at(cluster.client(), "openai", &thread);
        begins(&alice).await;
        let piece = ["alpha ", "omega "][at];
        dictation.says(piece);
        let heard = readers[at].until(|frame| frame.data.to_string().contains(piece)).await;
        let other = ["omega ", "alpha "][at];
        assert!(!heard.iter().any(|frame| frame.data.to_string().contains(other)));
        dictations.push(dictation);
    }
    // Pieces before the last one came from its own server. First those that have arrived, since more may be sent
    // meanwhile.
    let received = metric(&twins[1].client, "adjutant_live_chunks_received_total", None).await;
    let sent = metric(&stranger.client(), "adjutant_live_chunks_sent_total", None).await;
    assert!(received > 0.5 && received < sent + 0.5, "{received} of {sent}");
    drop(dictations);
    drop(readers);
    for twin in twins {
        twin.stops().await;
    }
    stranger.finish().await;
}

async fn messages_of_another_version_and_garbage_on_nats_are_passed_over_and_counted(server: TestServer) {
    let Some(nats) = Nats::starts().await else { return };
    let mut wire = nats.hears("adjutant.>").await;
    server.is_configured_with(&nats.section()).await;
    let twin = server.starts_twin().await;
    let dictation = server.models.will_be_dictated();
    let alice = server.human("openai").await;
    let run = begins(&alice).await;
    let mut there = joins(&twin.client, &alice, &run).await;
    let wanted = wire.next().await.subject.to_string();
    dictation.says("one ");
    let mut heard = reads(&mut there, "one ").await;
    let counted = async |reason| {
        let metrics = "adjutant_live_messages_passed_over_total";
        metric(&twin.client, metrics, Some(reason)).await
    };
    let chunks = wanted.replace("wanted", &format!("chunks.{}", alice.thread));
    wire.says(&wanted, "0\nnew something else").await;
    eventually(async || counted("other_version").await > 0.5).await;
    wire.says(&chunks, "0\nsomething else").await;
    eventually(async || counted("other_version").await > 1.5).await;
    for (at, garbage) in [
        b"1\nnonsense".to_vec(),
        vec![0xff, 0xfe],
        format!("1\n{} 0 1000000 {{}}", alice.thread).into_bytes(),
    ]
    .into_iter()
    .enumerate()
    {
        wire.says(&chunks, garbage).await;
        eventually(async || counted("malformed").await > f64::from(u32::try_from(at).unwrap()) + 0.5).await;
    }
    dictation.says("two");
    heard.extend(reads(&mut there, "two").await);
    dictation.ends();
    heard.extend(there.rest().await);
    assert_eq!(text_of(&heard), "one two");
    twin.stops().await;
}

async fn a_piece_too_large_for_a_notification_travels_over_nats(server: TestServer) {
    let Some(_nats) = over_nats(&server, JETSTREAM).await else {
        return;
    };
    let twin = server.starts_twin().await;
    let dictation = server.models.will_be_dictated();
    let alice = server.human("openai").await;
    let run = begins(&alice).await;
    let mut there = joins(&twin.client, &alice, &run).await;
    let large = format!("{}!", "a".repeat(100_000));
    dictation.says(&large);
    let mut heard = reads(&mut there, "!").await;
    dictation.says(" end");
    heard.extend(reads(&mut there, " end").await);
    dictation.ends();
    there.rest().await;
    assert_eq!(text_of(&heard), format!("{large} end"));
    twin.stops().await;
}

async fn a_piece_too_large_for_nats_comes_with_the_whole_answer(server: TestServer) {
    let Some(_nats) = over_nats(&server, "max_payload: 32768\n").await else {
        return;
    };
    let twin = server.starts_twin().await;
    let dictation = server.models.will_be_dictated();
    let alice = server.human("openai").await;
    let run = begins(&alice).await;
    let there = joins(&twin.client, &alice, &run).await;
    let large = "a".repeat(100_000);
    dictation.says(&large);
    let client = server.client();
    eventually(async || metric(&client, "adjutant_live_chunks_unsent_total", Some("too_large")).await > 0.5).await;
    dictation.says(" end");
    dictation.ends();
    assert_eq!(text_of(&there.rest().await), format!("{large} end"));
    twin.stops().await;
}

async fn pieces_on_nats_are_sealed_by_a_server_that_encrypts(server: TestServer) {
    let Some(nats) = Nats::starts().await else { return };
    let keys = server.configuration().with_file_name("master.keys");
    std::fs::write(keys, "old:MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n").expect("the keys");
    let section = format!("[encryption]\nkey_file = \"master.keys\"\n{}", nats.section());
    server.is_configured_with(&section).await;
    let mut wire = nats.hears("adjutant.*.chunks.*").await;
    let twin = server.starts_twin().await;
    let dictation = server.models.will_be_dictated();
    let alice = server.human("openai").await;
    let run = begins(&alice).await;
    let mut there = joins(&twin.client, &alice, &run).await;
    dictation.says("xyzzy");
    reads(&mut there, "xyzzy").await;
    let sent = wire.next().await;
    let text = String::from_utf8_lossy(&sent.payload).into_owned();
    assert!(text.starts_with("1\n") && text.contains("sealed1:"), "{text}");
    assert!(!text.contains("xyzzy") && !text.contains("openai"), "{text}");
    // Others on this NATS could send plain pieces, which are not taken.
    let forged = format!("1\n{} 0 1000000 {{}}", alice.thread);
    wire.says(&sent.subject, forged).await;
    let counted = async || metric(&twin.client, "adjutant_live_messages_passed_over_total", Some("sealed")).await > 0.0;
    eventually(counted).await;
    dictation.ends();
    there.rest().await;
    twin.stops().await;
}

/// Returns what `adjutant check --connect` says about NATS with this section, and the whole report.
pub(super) fn checks(server: &TestServer, base: &str, section: &str) -> (Value, String) {
    std::fs::write(server.configuration(), format!("{base}\n{section}")).expect("it can change");
    let output = command(server, &["check", "--connect", "--json"]);
    let said = String::from_utf8(output.stdout).expect("text");
    let report: Value = serde_json::from_str(&said).expect("a report");
    let checks = report["checks"].as_array().expect("a list").clone();
    let found = checks.into_iter().find(|check| check["kind"] == "nats");
    (found.expect("a check"), said)
}

async fn the_check_of_connections_says_whether_nats_can_be_used(server: TestServer) {
    let Some(mut nats) = Nats::starts().await else { return };
    let Some(guarded) = Nats::starts_with(LOGIN).await else {
        return;
    };
    let base = std::fs::read_to_string(server.configuration()).expect("a configuration");
    let (found, _) = checks(&server, &base, &nats.section());
    assert_eq!(found["status"], "ok", "{found}");
    assert_eq!(found["name"], format!("nats://{}", nats.address()));
    let with_login = |password: &str| format!("[cluster]\nnats = \"nats://me:{password}@{}\"\n", guarded.address());
    let (found, report) = checks(&server, &base, &with_login("s3cret"));
    assert_eq!(found["status"], "warn", "it has no JetStream: {found}");
    assert!(!report.contains("s3cret"), "{report}");
    let (found, report) = checks(&server, &base, &with_login("wr0ng"));
    assert_eq!(found["status"], "fail", "{found}");
    assert!(
        found["message"]
            .as_str()
            .is_some_and(|message| message.contains("refuses the login")),
        "{found}"
    );
    assert!(!report.contains("wr0ng"), "{report}");
    nats.is_killed();
    let (found, _) = checks(&server, &base, &nats.section());
    assert_eq!(found["status"], "fail", "{found}");
    assert!(
        found["advice"]
            .as_str()
            .is_some_and(|advice| advice.contains("start nats-server")),
        "{found}"
    );
}
