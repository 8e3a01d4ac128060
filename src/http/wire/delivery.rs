//! Webhook deliveries on the wire.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::domain::delivery::{Delivery, DeliveryStatus, shown_address};

/// A webhook delivery: the report of an ended run to the webhook of its request.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Delivery")]
pub struct DeliveryView {
    /// The id of the delivery; each attempt has it in the header `webhook-id`.
    pub delivery_id: Uuid,
    /// The run.
    pub run_id: Uuid,
    /// The thread of the run. It may have been deleted.
    pub thread_id: Uuid,
    /// The URL of the webhook, with `***` in place of a user and a query.
    pub url: String,
    /// The status of the delivery.
    pub status: DeliveryStatusWord,
    /// The number of attempts since the delivery was created or requested again.
    pub attempts: u32,
    /// The time of the next attempt; null if there is none or one is running.
    #[schema(format = DateTime)]
    pub next_attempt_at: Option<String>,
    /// The HTTP status of the response to the last attempt, if there was one.
    pub response_status: Option<u16>,
    /// The error of the last attempt, if it failed.
    pub error: Option<String>,
    /// The time when the run ended.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The time when the delivery succeeded or was given up.
    #[schema(format = DateTime)]
    pub finished_at: Option<String>,
    /// The payload; only shown for a single delivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub payload: Option<Value>,
}

/// The status of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryStatusWord {
    /// Attempts are running or scheduled.
    Pending,
    /// The delivery succeeded.
    Delivered,
    /// All attempts failed.
    Dead,
}

impl From<DeliveryStatus> for DeliveryStatusWord {
    fn from(status: DeliveryStatus) -> Self {
        match status {
            DeliveryStatus::Pending => Self::Pending,
            DeliveryStatus::Delivered => Self::Delivered,
            DeliveryStatus::Dead => Self::Dead,
        }
    }
}

impl From<Delivery> for DeliveryView {
    /// Creates the view without the payload.
    fn from(delivery: Delivery) -> Self {
        Self {
            delivery_id: delivery.id.0,
            run_id: delivery.run.0,
            thread_id: delivery.thread.0,
            url: shown_address(&delivery.url),
            status: delivery.status.into(),
            attempts: delivery.attempts,
            next_attempt_at: delivery.next_attempt_at.map(|at| at.to_string()),
            response_status: delivery.answer,
            error: delivery.error,
            created_at: delivery.created_at.to_string(),
            finished_at: delivery.finished_at.map(|at| at.to_string()),
            payload: None,
        }
    }
}

impl DeliveryView {
    /// Creates the view with the payload.
    pub fn whole(delivery: Delivery) -> Self {
        let mut payload: Option<Value> = serde_json::from_str(&delivery.body).ok();
        // Servers of the former release write the whole address.
        let address = payload
            .as_mut()
            .and_then(|payload| payload.pointer_mut("/kwargs/webhook"));
        if let Some(Value::String(address)) = address {
            *address = shown_address(address);
        }
        Self {
            payload,
            ..Self::from(delivery)
        }
    }
}
