//! The header `retry-after` of responses.

use std::time::Duration;

use reqwest::header::{HeaderMap, RETRY_AFTER};

use crate::domain::time::{Clock, SystemClock, Timestamp};

/// Returns the time after which a server wants the next request. The header has seconds, or a date by the clock of this
/// machine; none if it has something else, or a date in the past.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let at = Timestamp::read_http(value)?;
    let now = SystemClock.now();
    (at > now).then(|| at.since(now))
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    fn of(value: &'static str) -> Option<Duration> {
        retry_after(&HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(value))]))
    }

    #[test]
    fn the_header_has_seconds_or_a_date() {
        assert_eq!(retry_after(&HeaderMap::new()), None);
        assert_eq!(of("3"), Some(Duration::from_secs(3)));
        assert_eq!(of(" 0.5"), Some(Duration::from_millis(500)));
        assert_eq!(of("-1"), None);
        assert_eq!(of("soon"), None);
        assert_eq!(of("Sat, 21 Nov 2020 08:40:26 GMT"), None, "it has passed");
        let year = Duration::from_secs(365 * 86_400);
        assert!(of("Fri, 21 Nov 2121 08:40:26 GMT") > Some(year));
    }
}
