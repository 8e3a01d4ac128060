//! Searches and histories that would take too much memory or time.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, reply};
use crate::support::{TestServer, on_both_engines};

/// Writes into the state of a thread.
async fn write(client: &Client, thread: &str, values: Value) {
    client
        .post(
            &format!("/threads/{thread}/state"),
            json!({"values": values, "as_node": "model"}),
        )
        .await
        .ok();
}

/// Creates a thread of an agent.
async fn new_thread(server: &TestServer) -> String {
    let alice = server.human("agent").await;
    alice.says("hello").await;
    alice.path("").trim_start_matches("/threads/").to_owned()
}

fn message(id: &str, bytes: usize) -> Value {
    json!({"role": "user", "id": id, "content": "x".repeat(bytes)})
}

/// Returns all pages of a history of at most `limit` checkpoints, as the SDKs read them: each starts before the last
/// checkpoint of the page before it.
async fn pages(client: &Client, thread: &str, limit: usize) -> Vec<Vec<Value>> {
    let mut all: Vec<Vec<Value>> = vec![];
    let mut before = json!(null);
    loop {
        let body = json!({"limit": limit, "before": before});
        let page = client.post(&format!("/threads/{thread}/history"), body).await;
        let next = page
            .headers
            .get("x-pagination-next")
            .map(|next| next.to_str().unwrap().to_owned());
        let page = page.ok().as_array().expect("a list").clone();
        let Some(last) = page.last() else { return all };
        let last = last["checkpoint"]["checkpoint_id"].clone();
        if let Some(next) = next {
            assert_eq!(json!(next), last, "the header names where to go on");
        }
        before = json!({"configurable": {"checkpoint_id": last}});
        all.push(page);
    }
}

/// Returns the memory of the server's process, in MiB, as its metrics report it.
async fn resident_mib(client: &Client) -> f64 {
    let text = client.get("/metrics").await.body.as_str().expect("text").to_owned();
    let line = text
        .lines()
        .find(|line| line.starts_with("process_resident_memory_bytes"))
        .expect("a figure");
    line.rsplit(' ').next().unwrap().parse::<f64>().expect("a number") / 1_048_576.0
}

on_both_engines! {
    a_large_history_is_read_in_pages,
    a_page_of_history_has_at_least_one_checkpoint,
    lists_of_large_rows_are_read_in_pages,
    selected_fields_equal_those_of_the_whole_response,
    a_history_of_four_hundred_megabytes_takes_little_memory,
    a_list_of_large_threads_is_read_in_pages,
    a_filter_has_at_most_64_values,
    the_most_expensive_search_delays_no_other_request,
    a_filter_matches_lists,
    a_disconnect_while_a_history_is_read_frees_its_resources,
}

async fn a_large_history_is_read_in_pages(server: TestServer) {
    let client = server.client();
    let thread = new_thread(&server).await;
    for at in 0..12 {
        write(
            &client,
            &thread,
            json!({"messages": [message(&format!("m{at}"), 10_000)]}),
        )
        .await;
    }
    let whole = pages(&client, &thread, 1000).await.concat();
    assert!(whole.len() > 12);
    server.is_configured("max_answer_bytes = 300000").await;
    let client = server.client();
    let cut = pages(&client, &thread, 1000).await;
    assert!(cut.len() > 2, "{} pages", cut.len());
    for page in &cut {
        let bytes = serde_json::to_string(page).unwrap().len();
        assert!(bytes < 320_000, "{bytes} bytes in one answer");
    }
    assert_eq!(cut.concat(), whole, "no checkpoint is lost or shown in another way");
    // Fields that a client does not want to see do not count.
    let path = format!("/threads/{thread}/history?limit=1000&select=metadata&select=checkpoint_id");
    let slim = client.get(&path).await;
    assert_eq!(slim.headers.get("x-pagination-next"), None);
    assert_eq!(slim.ok().as_array().map(Vec::len), Some(whole.len()));
}

async fn a_page_of_history_has_at_least_one_checkpoint(server: TestServer) {
    server.is_configured("max_answer_bytes = 2000").await;
    let client = server.client();
    let thread = new_thread(&server).await;
    write(&client, &thread, json!({"messages": [message("m", 50_000)]})).await;
    let history = client.get(&format!("/threads/{thread}/history?limit=10")).await;
    assert!(history.headers.contains_key("x-pagination-next"));
    let history = history.ok();
    assert_eq!(history.as_array().map(Vec::len), Some(1));
    let state = client.get(&format!("/threads/{thread}/state")).await.ok();
    assert_eq!(history[0]["values"], state["values"]);
}

async fn lists_of_large_rows_are_read_in_pages(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let note = |at: usize| json!({"note": "x".repeat(20_000), "at": at});
    for at in 0..6 {
        client
            .post(
                "/assistants",
                json!({"graph_id": "agent", "name": "large", "metadata": note(at)}),
            )
            .await
            .ok();
        let run = alice.run_body(
            "later",
            json!({"after_seconds": 86400, "multitask_strategy": "enqueue", "metadata": note(at)}),
        );
        client.post(&alice.path("/runs"), run).await.ok();
        let cron =
            json!({"assistant_id": "agent", "schedule": "0 0 1 1 *", "input": {"messages": []}, "metadata": note(at)});
        client.post("/runs/crons", cron).await.ok();
        let item = json!({"namespace": ["large"], "key": format!("k{at}"), "value": note(at)});
        assert_eq!(client.put("/store/items", item).await.status, 204);
    }
    server.is_configured("max_answer_bytes = 70000").await;
    let client = server.client();
    let page = async |list: &str, offset: usize| match list {
        "runs" => {
            client
                .get(&alice.path(&format!("/runs?limit=100&offset={offset}")))
                .await
        }
        "assistants" => {
            client
                .post(
                    "/assistants/search",
                    json!({"name": "large", "limit": 100, "offset": offset}),
                )
                .await
        }
        "crons" => {
            client
                .post("/runs/crons/search", json!({"limit": 100, "offset": offset}))
                .await
        }
        _ => {
            let body = json!({"namespace_prefix": ["large"], "limit": 100, "offset": offset});
            client.post("/store/items/search", body).await
        }
    };
    for list in ["runs", "assistants", "crons", "items"] {
        let mut all = vec![];
        let mut pages = 0;
        let mut offset = 0;
        loop {
            let page = page(list, offset).await;
            let next = page
                .headers
                .get("x-pagination-next")
                .map(|next| next.to_str().unwrap().parse().unwrap());
            let shown = page.ok();
            assert!(
                shown.to_string().len() < 100_000,
                "{list}: {} bytes",
                shown.to_string().len()
            );
            let items = if list == "items" { &shown["items"] } else { &shown };
            all.extend(items.as_array().expect("a list").clone());
            pages += 1;
            match next {
                Some(next) => offset = next,
                None => break,
            }
        }
        let mut found: Vec<u64> = all
            .iter()
            .filter_map(|one| one["metadata"]["at"].as_u64().or_else(|| one["value"]["at"].as_u64()))
            .collect();
        found.sort_unstable();
        assert_eq!(found, [0, 1, 2, 3, 4, 5], "{list}");
        assert!(pages > 1, "{list}: one page");
    }
    client.post("/runs/cancel", json!({"status": "all"})).await;
}

async fn selected_fields_equal_those_of_the_whole_response(server: TestServer) {
    let client = server.client();
    let thread = new_thread(&server).await;
    write(&client, &thread, json!({"messages": [message("m", 10)]})).await;
    let path = format!("/threads/{thread}/history?limit=100");
    let whole = client.get(&path).await.ok();
    for field in [
        "values",
        "next",
        "tasks",
        "metadata",
        "created_at",
        "checkpoint",
        "parent_checkpoint",
        "interrupts",
    ] {
        let selected = client.get(&format!("{path}&select={field}")).await.ok();
        let expected: Vec<Value> = whole
            .as_array()
            .unwrap()
            .iter()
            .map(|state| json!({field: state[field]}))
            .collect();
        assert_eq!(selected, json!(expected));
    }
    let messages = client.get(&format!("{path}&select=values.messages")).await.ok();
    assert_eq!(
        messages[0],
        json!({"values": {"messages": whole[0]["values"]["messages"]}})
    );
}

async fn a_history_of_four_hundred_megabytes_takes_little_memory(server: TestServer) {
    let thread = new_thread(&server).await;
    let client = server.client();
    for at in 0..4 {
        write(
            &client,
            &thread,
            json!({"messages": [message(&format!("big{at}"), 1_000_000)]}),
        )
        .await;
    }
    for at in 0..100 {
        write(&client, &thread, json!({"messages": [message("small", at)]})).await;
    }
    server.moves_into_a_process().await;
    let client = server.client();
    let before = resident_mib(&client).await;
    let path = format!("/threads/{thread}/history?limit=100");
    let readers = (0..4).map(|_| async {
        let page = client.get(&path).await;
        assert!(
            page.headers.contains_key("x-pagination-next"),
            "the answer ends at its budget"
        );
        page.ok().as_array().map(Vec::len)
    });
    for shown in futures::future::join_all(readers).await {
        assert_eq!(shown, Some(8), "32 MiB of states of 4 MB");
    }
    let slim = client.get(&format!("{path}&select=metadata")).await.ok();
    assert_eq!(slim.as_array().map(Vec::len), Some(100));
    let after = resident_mib(&client).await;
    assert!(after - before < 250.0, "from {before} MiB to {after} MiB");
}

async fn a_list_of_large_threads_is_read_in_pages(server: TestServer) {
    server.is_configured("max_answer_bytes = 50000").await;
    let client = server.client();
    let mut threads = vec![];
    for at in 0..5 {
        let thread = client
            .post("/threads", json!({"metadata": {"mine": true, "at": at}}))
            .await
            .ok();
        threads.push(thread["thread_id"].as_str().unwrap().to_owned());
        write(&client, &threads[at], json!({"messages": [message("m", 20_000)]})).await;
    }
    let mut found = vec![];
    let mut pages = 0;
    let mut offset = 0;
    loop {
        let search = json!({"metadata": {"mine": true}, "limit": 1000, "offset": offset, "sort_by": "created_at",
                "sort_order": "asc"});
        let page = client.post("/threads/search", search).await;
        assert_eq!(page.headers["x-pagination-total"], "5");
        let next = page
            .headers
            .get("x-pagination-next")
            .map(|next| next.to_str().unwrap().parse::<usize>().unwrap());
        let page = page.ok();
        assert!(page.to_string().len() < 60_000);
        found.extend(
            page.as_array()
                .unwrap()
                .iter()
                .map(|thread| thread["thread_id"].as_str().unwrap().to_owned()),
        );
        pages += 1;
        let Some(next) = next else { break };
        offset = next;
    }
    assert_eq!(found, threads);
    assert!(pages > 1, "all on one page");
    // Without the values they fit.
    let slim = json!({"metadata": {"mine": true}, "limit": 1000, "select": ["thread_id"]});
    assert_eq!(
        client.post("/threads/search", slim).await.ok().as_array().map(Vec::len),
        Some(5)
    );
}

async fn a_filter_has_at_most_64_values(server: TestServer) {
    let client = server.client();
    let thread = new_thread(&server).await;
    let lists = |width: usize, depth: u32| (0..depth).fold(json!(0), |inner, _| json!(vec![inner; width]));
    for path in ["/threads/search".to_owned(), "/threads/count".to_owned()] {
        let refused = client
            .post(&path, json!({"values": {"x": lists(9, 2)}}))
            .await
            .refused(422);
        assert!(refused.contains("values"), "{refused}");
        assert!(refused.contains("64"), "{refused}");
        client.post(&path, json!({"values": {"x": lists(8, 2)}})).await.ok();
    }
    let path = format!("/threads/{thread}/history");
    let refused = client
        .post(&path, json!({"metadata": {"x": lists(9, 2)}}))
        .await
        .refused(422);
    assert!(refused.contains("metadata"), "{refused}");
}

async fn the_most_expensive_search_delays_no_other_request(server: TestServer) {
    let client = server.client();
    let thread = new_thread(&server).await;
    // Every list is looked through for every list that is wanted, and the last value makes none fit.
    let whole = json!(vec![json!(vec![json!(vec![0; 40]); 40]); 40]);
    write(&client, &thread, json!({"todos": whole})).await;
    let wanted = json!({"values": {"todos": vec![json!(vec![json!(vec![1; 4]); 4]); 4]}});
    let searching = client.clone();
    let searches = (0..4).map(|_| searching.post("/threads/search", wanted.clone()));
    let answered = async {
        let mut slowest = Duration::ZERO;
        for _ in 0..20 {
            let begun = Instant::now();
            client.get("/ok").await.ok();
            slowest = slowest.max(begun.elapsed());
        }
        slowest
    };
    let begun = Instant::now();
    let (found, slowest) = futures::join!(futures::future::join_all(searches), answered);
    for found in found {
        assert_eq!(found.ok(), json!([]));
    }
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "the searches took {:?}",
        begun.elapsed()
    );
    assert!(slowest < Duration::from_secs(2), "/ok took {slowest:?}");
}

async fn a_filter_matches_lists(server: TestServer) {
    let client = server.client();
    let thread = new_thread(&server).await;
    write(
        &client,
        &thread,
        json!({"todos": [{"content": "a", "status": "pending"}, [1, [2, 3]]]}),
    )
    .await;
    for (wanted, is_there) in [
        (json!([{"status": "pending"}]), true),
        (json!([{"status": "pending", "content": "b"}]), false),
        (json!([[[3]]]), true),
        (json!([[1.0, [2]], {"content": "a"}]), true),
        (json!([[2]]), false),
        (json!([]), true),
    ] {
        let found = client
            .post("/threads/search", json!({"values": {"todos": wanted}}))
            .await
            .ok();
        assert_eq!(found.as_array().map(Vec::len), Some(usize::from(is_there)), "{wanted}");
    }
    let history = format!("/threads/{thread}/history");
    let updates = client
        .post(&history, json!({"limit": 10, "metadata": {"source": "update"}}))
        .await
        .ok();
    assert_eq!(updates.as_array().map(Vec::len), Some(1));
    let state = client.get(&format!("/threads/{thread}/state")).await.ok();
    assert_eq!(updates[0], state);
}

async fn a_disconnect_while_a_history_is_read_frees_its_resources(server: TestServer) {
    let client = server.client();
    let thread = new_thread(&server).await;
    for at in 0..8 {
        write(
            &client,
            &thread,
            json!({"messages": [message(&format!("m{at}"), 1_000_000)]}),
        )
        .await;
    }
    let path = format!("/threads/{thread}/history?limit=100");
    // Each holds its part of the memory for answers until it is gone; there is room for four.
    for _ in 0..12 {
        let mut answer = client.request(Method::GET, &path).send().await.expect("an answer");
        assert!(answer.chunk().await.expect("a part").is_some());
    }
    let whole = reply(client.request(Method::GET, &path).timeout(Duration::from_secs(20))).await;
    assert!(!whole.ok().as_array().unwrap().is_empty());
}
