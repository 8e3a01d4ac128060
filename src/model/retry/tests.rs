use std::sync::Mutex;

use super::*;
use crate::domain::message::Message;

type Reply = Result<Vec<Result<ModelEvent, ModelError>>, ModelError>;

/// A model that returns prepared replies in their order.
struct Prepared(Mutex<Vec<Reply>>);

#[async_trait]
impl Model for Prepared {
    fn identity(&self) -> (&str, &str) {
        ("test", "test")
    }

    async fn ask(&self, _: ModelRequest) -> Result<BoxStream<'static, Result<ModelEvent, ModelError>>, ModelError> {
        Ok(stream::iter(self.0.lock().unwrap().remove(0)?).boxed())
    }
}

fn retrying(replies: Vec<Reply>) -> (Retrying, Arc<Prepared>) {
    let model = Arc::new(Prepared(Mutex::new(replies)));
    (Retrying::new(model.clone(), RetryPolicy::default()), model)
}

fn down() -> ModelError {
    ModelError::Unavailable {
        retry_after: None,
        message: "down".to_owned(),
    }
}

fn text(text: &str) -> Result<ModelEvent, ModelError> {
    Ok(ModelEvent::Text(text.to_owned()))
}

#[tokio::test(start_paused = true)]
async fn asks_again_until_it_works() {
    let done = Ok(ModelEvent::Done(Box::new(Message::ai("x"))));
    let (model, _) = retrying(vec![
        Err(down()),
        Ok(vec![Err(down())]),
        Ok(vec![text("x"), done.clone()]),
    ]);
    let events: Vec<_> = model.ask(ModelRequest::default()).await.unwrap().collect().await;
    assert_eq!(events.len(), 2);
    assert_eq!(events[0].as_ref().unwrap(), text("x").as_ref().unwrap());
}

#[tokio::test(start_paused = true)]
async fn gives_up_after_its_retries() {
    let (model, prepared) = retrying(vec![Err(down()), Err(down()), Err(down()), Err(down())]);
    assert!(matches!(
        model.ask(ModelRequest::default()).await.err(),
        Some(ModelError::Unavailable { .. })
    ));
    assert_eq!(prepared.0.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn does_not_ask_again_after_a_delta_or_a_refusal() {
    let (model, prepared) = retrying(vec![Ok(vec![text("a"), Err(down())]), Ok(vec![])]);
    let events: Vec<_> = model.ask(ModelRequest::default()).await.unwrap().collect().await;
    assert!(events[0].is_ok() && events[1].is_err());
    assert_eq!(prepared.0.lock().unwrap().len(), 1);
    let refused = ModelError::Refused {
        status: 400,
        message: String::new(),
    };
    let (model, prepared) = retrying(vec![Err(refused), Ok(vec![])]);
    assert!(model.ask(ModelRequest::default()).await.is_err());
    assert_eq!(prepared.0.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn waits_as_long_as_the_provider_asks_within_bounds() {
    for (requested, waited) in [(7, 7), (3600, 60)] {
        let limited = ModelError::RateLimited {
            retry_after: Some(Duration::from_secs(requested)),
            message: String::new(),
        };
        let (model, _) = retrying(vec![Err(limited), Ok(vec![text("a")])]);
        let start = tokio::time::Instant::now();
        assert!(model.ask(ModelRequest::default()).await.is_ok());
        assert_eq!(start.elapsed().as_secs(), waited);
    }
}
