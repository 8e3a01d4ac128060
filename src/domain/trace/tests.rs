use super::*;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[test]
fn a_traceparent_is_parsed_and_written_again() {
    let context = SpanContext::parse(PARENT, Some("vendor=1")).expect("it is valid");
    assert!(context.is_sampled);
    assert_eq!(context.traceparent(), PARENT);
    assert_eq!(context.state.as_deref(), Some("vendor=1"));
    let not_sampled = PARENT.replace("-01", "-00");
    assert!(!SpanContext::parse(&not_sampled, None).expect("it is valid").is_sampled);
}

#[test]
fn an_invalid_traceparent_is_ignored() {
    for wrong in [
        "",
        "00",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c8031ü-b7ad6b7169203331-01",
    ] {
        assert_eq!(SpanContext::parse(wrong, None), None, "{wrong:?}");
    }
    let later = "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-the-future-brings";
    assert!(SpanContext::parse(later, None).is_some());
}

#[test]
fn a_tracestate_that_is_too_long_or_no_header_is_left_out() {
    for wrong in ["", "  ", "a=\nb", &"x".repeat(513)] {
        let context = SpanContext::parse(PARENT, Some(wrong)).expect("the parent is valid");
        assert_eq!(context.state, None, "{wrong:?}");
    }
}

#[test]
fn a_stored_context_is_read_again() {
    let parent = SpanContext::parse(PARENT, Some("a=b")).expect("it is valid");
    let trace = RunTrace::below(parent, RunId::mint());
    let stored = serde_json::to_string(&trace).expect("JSON");
    assert!(stored.contains(PARENT));
    assert_eq!(serde_json::from_str::<RunTrace>(&stored).expect("the same"), trace);
    assert!(serde_json::from_str::<SpanContext>(r#"{"traceparent":"00-1-2-3"}"#).is_err());
}

#[test]
fn a_sampler_keeps_its_ratio_and_follows_the_parent() {
    let sampler = |ratio| Sampler {
        ratio,
        is_parent_based: true,
    };
    let kept = (0..4000)
        .filter(|_| sampler(0.25).samples(TraceId::mint(), None))
        .count();
    assert!((800..1200).contains(&kept), "{kept} of 4000");
    assert!(sampler(1.0).samples(TraceId([0; 16]), None));
    assert!(!sampler(0.0).samples(TraceId([0xff; 16]), None));
    let mut parent = SpanContext::parse(PARENT, None).expect("it is valid");
    assert!(sampler(0.0).samples(parent.trace, Some(&parent)));
    parent.is_sampled = false;
    assert!(!sampler(1.0).samples(parent.trace, Some(&parent)));
    let alone = Sampler {
        ratio: 1.0,
        is_parent_based: false,
    };
    assert!(alone.samples(parent.trace, Some(&parent)));
}

#[test]
fn a_run_has_the_same_span_in_every_process() {
    let run = RunId::mint();
    assert_eq!(SpanId::of_run(run), SpanId::of_run(run));
    let child = RunId::mint();
    assert_ne!(SpanId::of_child(child, run), SpanId::of_child(child, RunId::mint()));
    assert_ne!(SpanId::of_run(run), SpanId([0; 8]));
}

#[test]
fn a_tracer_that_is_off_does_nothing() {
    let scope = Tracer::default().scope(SpanContext::parse(PARENT, None));
    assert_eq!(scope.context(), None);
    assert!(scope.begin(SpanKind::Client).is_none());
    assert_eq!(Tracer::default().begin_server_span(None), None);
}
