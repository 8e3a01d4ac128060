//! The `[telemetry]` section of the configuration file, its validation, and the variables of OpenTelemetry that replace
//! or complete it.

use std::collections::BTreeMap;
use std::time::Duration;

use secrecy::SecretString;
use serde::Deserialize;

use super::sections::seconds;
use crate::definition::header_name_problem;
use crate::definition::words::timeout_problem;

/// The name of the service, unless the settings say otherwise.
const SERVICE_NAME: &str = "adjutant";
/// The longest name or value of a resource attribute, in bytes.
const MAX_ATTRIBUTE_BYTES: usize = 1024;
/// The shortest and the longest time for which a span waits for others, in seconds.
const MIN_EXPORT_INTERVAL_S: f64 = 0.05;
const MAX_EXPORT_INTERVAL_S: f64 = 60.0;
/// The most entries of a variable with a list.
const MAX_ENTRIES: usize = 128;

/// `[telemetry]`: traces, sent to an OpenTelemetry collector. Without an `otlp_endpoint`, here or in the environment,
/// traces are off.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct TelemetrySection {
    /// The address of the collector, as in `http://localhost:4318`; `/v1/traces` is added to its path.
    pub otlp_endpoint: Option<String>,
    /// The encoding of requests to the collector.
    pub protocol: OtlpProtocol,
    /// The headers of requests to the collector.
    #[cfg_attr(test, schemars(with = "BTreeMap<String, String>"))]
    pub headers: BTreeMap<String, SecretString>,
    /// The name of this server in traces; `adjutant` if absent.
    pub service_name: Option<String>,
    /// Further attributes of this server, such as `deployment.environment.name`.
    pub resource: BTreeMap<String, String>,
    /// The part of the traces that is recorded, from 0 to 1. A trace that another system began is recorded if that
    /// system records it.
    pub sample_ratio: f64,
    /// True if spans contain instructions, messages, and the arguments and results of tools.
    pub capture_content: bool,
    /// The maximum size of the contents in one attribute, in bytes.
    pub max_content_bytes: usize,
    /// True if model providers get the headers `traceparent` and `tracestate`.
    pub propagate_to_models: bool,
    /// The timeout of one request to the collector, in seconds.
    pub timeout_s: f64,
    /// The longest time for which a span waits for others before it is sent, in seconds; at least 0.05.
    pub export_interval_s: f64,
    /// The maximum number of spans that wait. Further ones are dropped and counted.
    pub queue_size: usize,
    /// The maximum number of spans in one request.
    pub batch_size: usize,
    /// The time for sending what waits when the server stops, in seconds.
    pub shutdown_s: f64,
    /// True if `otlp_endpoint` is the whole address, to which no path is added.
    #[serde(skip)]
    pub is_whole_endpoint: bool,
    /// True if the decision about a trace of another system is that system's.
    #[serde(skip)]
    pub is_parent_based: bool,
}

/// The encoding of requests to a collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
pub enum OtlpProtocol {
    /// Protobuf over HTTP.
    #[default]
    #[serde(rename = "http/protobuf")]
    HttpProtobuf,
    /// JSON over HTTP.
    #[serde(rename = "http/json")]
    HttpJson,
}

impl Default for TelemetrySection {
    fn default() -> Self {
        Self {
            otlp_endpoint: None,
            protocol: OtlpProtocol::default(),
            headers: BTreeMap::new(),
            service_name: None,
            resource: BTreeMap::new(),
            sample_ratio: 1.0,
            capture_content: false,
            max_content_bytes: 32 * 1024,
            propagate_to_models: false,
            timeout_s: 10.0,
            export_interval_s: 2.0,
            queue_size: 8192,
            batch_size: 512,
            shutdown_s: 5.0,
            is_whole_endpoint: false,
            is_parent_based: true,
        }
    }
}

/// A reader of variables of the environment.
type ReadVariable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A variable that cannot be used, with the reason.
pub(super) type InvalidVariable = (&'static str, String);

impl TelemetrySection {
    /// Returns [`TelemetrySection::timeout_s`] as a duration.
    pub fn timeout(&self) -> Duration {
        seconds(self.timeout_s)
    }

    /// Returns [`TelemetrySection::export_interval_s`] as a duration.
    pub fn export_interval(&self) -> Duration {
        seconds(self.export_interval_s)
    }

    /// Returns [`TelemetrySection::shutdown_s`] as a duration.
    pub fn shutdown(&self) -> Duration {
        seconds(self.shutdown_s)
    }

    /// Returns the attributes of this server.
    pub fn attributes(&self) -> BTreeMap<String, String> {
        let mut attributes = self.resource.clone();
        let named = self.service_name.clone().or_else(|| attributes.remove("service.name"));
        let name = named.unwrap_or_else(|| SERVICE_NAME.to_owned());
        attributes.insert("service.name".to_owned(), name);
        attributes.insert("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        attributes
    }

    /// Takes over the variables of OpenTelemetry. The section precedes them, but `OTEL_SDK_DISABLED` turns traces off.
    /// Returns the variables that cannot be used.
    pub(super) fn take_over(&mut self, variable: ReadVariable<'_>) -> Vec<InvalidVariable> {
        let mut invalid = vec![];
        if variable("OTEL_SDK_DISABLED").is_some_and(|value| value.trim().eq_ignore_ascii_case("true")) {
            self.otlp_endpoint = None;
            return invalid;
        }
        if self.otlp_endpoint.is_none() {
            let whole = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
            self.is_whole_endpoint = whole.is_some();
            self.otlp_endpoint = whole.or_else(|| variable("OTEL_EXPORTER_OTLP_ENDPOINT"));
        }
        if self.otlp_endpoint.is_none() {
            return invalid;
        }
        let headers = ["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"];
        for name in headers {
            for (key, value) in read_list(name, variable, &mut invalid) {
                self.headers.entry(key).or_insert_with(|| value.into());
            }
        }
        self.service_name = self.service_name.take().or_else(|| variable("OTEL_SERVICE_NAME"));
        for (key, value) in read_list("OTEL_RESOURCE_ATTRIBUTES", variable, &mut invalid) {
            self.resource.entry(key).or_insert(value);
        }
        self.take_over_sampler(variable, &mut invalid);
        invalid
    }

    fn take_over_sampler(&mut self, variable: ReadVariable<'_>, invalid: &mut Vec<InvalidVariable>) {
        let Some(sampler) = variable("OTEL_TRACES_SAMPLER") else {
            return;
        };
        let argument = variable("OTEL_TRACES_SAMPLER_ARG");
        let ratio = argument.map_or(Ok(1.0), |text| text.trim().parse::<f64>());
        let ratio = ratio.ok().filter(|ratio| (0.0..=1.0).contains(ratio));
        let name = sampler.trim();
        let (name, is_parent_based) = match name.strip_prefix("parentbased_") {
            Some(name) => (name, true),
            None => (name, false),
        };
        let found = match name {
            "always_on" => Some(1.0),
            "always_off" => Some(0.0),
            "traceidratio" => match ratio {
                Some(ratio) => Some(ratio),
                None => return invalid.push(("OTEL_TRACES_SAMPLER_ARG", "must be a number from 0 to 1".to_owned())),
            },
            _ => None,
        };
        match found {
            // The ratio of the section precedes the variable.
            Some(ratio) => {
                self.is_parent_based = is_parent_based;
                if (self.sample_ratio - 1.0).abs() < f64::EPSILON {
                    self.sample_ratio = ratio;
                }
            }
            None => invalid.push((
                "OTEL_TRACES_SAMPLER",
                "must be `always_on`, `always_off` or `traceidratio`, each also after `parentbased_`".to_owned(),
            )),
        }
    }

    /// Returns the invalid fields, each with the reason.
    pub(super) fn problems(&self) -> Vec<(Vec<&str>, String)> {
        let mut problems = vec![];
        if let Some(endpoint) = &self.otlp_endpoint {
            let url = url::Url::parse(endpoint).ok();
            let is_http = url.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
            if !is_http {
                // The address may contain a secret.
                let reason = "must be an absolute http or https URL, as in `http://localhost:4318`";
                problems.push((vec!["otlp_endpoint"], reason.to_owned()));
            }
        }
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            problems.push((vec!["sample_ratio"], "must be a number from 0 to 1".to_owned()));
        }
        for (field, value, most) in [
            ("timeout_s", self.timeout_s, 120.0),
            ("shutdown_s", self.shutdown_s, 60.0),
        ] {
            if let Some(problem) = timeout_problem(value, most) {
                problems.push((vec![field], problem));
            }
        }
        if !(MIN_EXPORT_INTERVAL_S..=MAX_EXPORT_INTERVAL_S).contains(&self.export_interval_s) {
            let reason = format!("must be from {MIN_EXPORT_INTERVAL_S} to {MAX_EXPORT_INTERVAL_S} seconds");
            problems.push((vec!["export_interval_s"], reason));
        }
        for (field, value, range) in [
            ("queue_size", self.queue_size, 1..=1_000_000),
            ("batch_size", self.batch_size, 1..=10_000),
            ("max_content_bytes", self.max_content_bytes, 256..=1_048_576),
        ] {
            if !range.contains(&value) {
                let reason = format!("must be a whole number from {} to {}", range.start(), range.end());
                problems.push((vec![field], reason));
            }
        }
        for name in self.headers.keys() {
            if let Some(reason) = header_name_problem(name) {
                problems.push((vec!["headers", name], reason.to_owned()));
            }
        }
        for (name, value) in &self.resource {
            if name.is_empty() || name.len() > MAX_ATTRIBUTE_BYTES || value.len() > MAX_ATTRIBUTE_BYTES {
                let reason = format!("must have a name and a value of at most {MAX_ATTRIBUTE_BYTES} bytes");
                problems.push((vec!["resource", name], reason));
            }
        }
        problems
    }
}

/// Reads a list like `a=1,b=two%20words`.
fn read_list(
    name: &'static str,
    variable: ReadVariable<'_>,
    invalid: &mut Vec<InvalidVariable>,
) -> Vec<(String, String)> {
    let text = variable(name).unwrap_or_default();
    let entries: Vec<&str> = text
        .split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
        .collect();
    let read = |entry: &&str| {
        let (key, value) = entry.split_once('=')?;
        let key = key.trim();
        (!key.is_empty()).then(|| (key.to_owned(), decoded(value.trim())))
    };
    let pairs: Vec<(String, String)> = entries.iter().filter_map(read).collect();
    if pairs.len() < entries.len() || entries.len() > MAX_ENTRIES {
        // The values may be secret.
        invalid.push((
            name,
            format!("must be a list like `a=1,b=2`, of at most {MAX_ENTRIES} entries"),
        ));
    }
    pairs
}

/// Decodes `%20` and the like, as the variables of OpenTelemetry are written.
fn decoded(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).filter(|_| *first == b'%');
        let byte = hex.and_then(|hex| hex::decode(hex).ok()?.first().copied());
        match byte {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn of(variables: &[(&str, &str)], mut section: TelemetrySection) -> (TelemetrySection, Vec<InvalidVariable>) {
        let read = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let invalid = section.take_over(&read);
        (section, invalid)
    }

    #[test]
    fn the_variables_of_opentelemetry_are_taken_over() {
        let (section, invalid) = of(
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"),
                ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20abc=,x-team=a"),
                ("OTEL_SERVICE_NAME", "editor"),
                (
                    "OTEL_RESOURCE_ATTRIBUTES",
                    "deployment.environment.name=test, team=a%2Cb",
                ),
                ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ],
            TelemetrySection::default(),
        );
        assert!(invalid.is_empty(), "{invalid:?}");
        assert_eq!(section.otlp_endpoint.as_deref(), Some("http://collector:4318"));
        assert!(!section.is_whole_endpoint);
        assert_eq!(section.headers["authorization"].expose_secret(), "Basic abc=");
        assert_eq!(section.headers["x-team"].expose_secret(), "a");
        let attributes = section.attributes();
        assert_eq!(attributes["service.name"], "editor");
        assert_eq!(attributes["team"], "a,b");
        assert!((section.sample_ratio - 0.25).abs() < f64::EPSILON);
        assert!(section.is_parent_based);
    }

    #[test]
    fn the_section_precedes_the_environment() {
        let own = TelemetrySection {
            otlp_endpoint: Some("http://own:4318".to_owned()),
            service_name: Some("own".to_owned()),
            sample_ratio: 0.5,
            ..TelemetrySection::default()
        };
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://other:4318"),
            ("OTEL_SERVICE_NAME", "other"),
            ("OTEL_TRACES_SAMPLER", "always_off"),
        ];
        let (section, invalid) = of(&variables, own.clone());
        assert!(invalid.is_empty(), "{invalid:?}");
        assert_eq!(section.otlp_endpoint.as_deref(), Some("http://own:4318"));
        assert_eq!(section.attributes()["service.name"], "own");
        assert!((section.sample_ratio - 0.5).abs() < f64::EPSILON);
        assert!(!section.is_parent_based);
        let (section, _) = of(&[("OTEL_SDK_DISABLED", "true")], own);
        assert_eq!(section.otlp_endpoint, None);
    }

    #[test]
    fn a_variable_that_cannot_be_used_is_named() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_HEADERS", "s3cret"),
            ("OTEL_TRACES_SAMPLER", "sometimes"),
        ] {
            let (_, invalid) = of(&[endpoint, (name, value)], TelemetrySection::default());
            assert_eq!(invalid.len(), 1, "{name}");
            assert_eq!(invalid[0].0, name);
            assert!(!invalid[0].1.contains(value));
        }
        let ratio = [
            endpoint,
            ("OTEL_TRACES_SAMPLER", "traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "2"),
        ];
        assert_eq!(
            of(&ratio, TelemetrySection::default()).1[0].0,
            "OTEL_TRACES_SAMPLER_ARG"
        );
    }
}
