use super::*;

/// Returns the first due times after `from`, in UTC.
fn times(text: &str, zone: Option<&str>, from: &str, count: usize) -> Vec<String> {
    let schedule = Schedule::read(text, zone).expect("a schedule");
    let mut now = Timestamp::read(from).expect("an instant");
    let mut next = || {
        now = schedule.next_after(now)?;
        Some(now.to_string().replace(":00.000000+00:00", ""))
    };
    std::iter::from_fn(&mut next).take(count).collect()
}

#[test]
fn a_schedule_without_a_time_zone_is_in_utc() {
    assert_eq!(
        times("0 12 * * *", None, "2026-11-21T11:59:59.9Z", 2),
        ["2026-11-21T12:00", "2026-11-22T12:00"]
    );
    let paris = times("0 12 * * *", Some("Europe/Paris"), "2026-11-21T11:59:59Z", 1);
    assert_eq!(paris, ["2026-11-22T11:00"]);
    assert_eq!(
        times("0 0 1 1 *", Some("Europe/Paris"), "2026-11-21T00:00:00Z", 1),
        ["2026-12-31T23:00"]
    );
}

#[test]
fn a_nickname_stands_for_five_fields() {
    for (nickname, first, second) in [
        ("@hourly", "2026-11-21T13:00", "2026-11-21T14:00"),
        ("@daily", "2026-11-22T00:00", "2026-11-23T00:00"),
        ("@midnight", "2026-11-22T00:00", "2026-11-23T00:00"),
        ("@weekly", "2026-11-22T00:00", "2026-11-29T00:00"),
        ("@monthly", "2026-12-01T00:00", "2027-01-01T00:00"),
        ("@yearly", "2027-01-01T00:00", "2028-01-01T00:00"),
        ("@Annually", "2027-01-01T00:00", "2028-01-01T00:00"),
    ] {
        assert_eq!(
            times(nickname, None, "2026-11-21T12:30:00Z", 2),
            [first, second],
            "{nickname}"
        );
        let schedule = Schedule::read(nickname, None).expect("a schedule");
        assert_eq!(schedule.text(), nickname);
    }
    let paris = times("@daily", Some("Europe/Paris"), "2026-11-21T12:30:00Z", 1);
    assert_eq!(paris, ["2026-11-21T23:00"]);
}

#[test]
fn the_next_due_time_is_strictly_later() {
    assert_eq!(
        times("*/15 * * * *", None, "2026-11-21T12:15:00Z", 2),
        ["2026-11-21T12:30", "2026-11-21T12:45"]
    );
    assert_eq!(
        times("*/15 * * * *", None, "2026-11-21T12:15:00.000001Z", 1),
        ["2026-11-21T12:30"]
    );
}

#[test]
fn days_of_the_week_are_sunday_to_saturday() {
    assert_eq!(
        times("0 9 * * 1-5", None, "2026-11-20T10:00:00Z", 1),
        ["2026-11-23T09:00"]
    );
    assert_eq!(
        times("0 9 * * 0", None, "2026-11-20T10:00:00Z", 1),
        ["2026-11-22T09:00"]
    );
    assert_eq!(
        times("0 9 * * SUN", None, "2026-11-20T10:00:00Z", 1),
        ["2026-11-22T09:00"]
    );
}

/// In Stockholm, clocks go forward from 02:00 (01:00 UTC) to 03:00 on 2026-03-29.
#[test]
fn a_skipped_fixed_time_is_due_right_after_the_skipped_hour() {
    let fixed = times("30 2 * * *", Some("Europe/Stockholm"), "2026-03-28T12:00:00Z", 2);
    assert_eq!(fixed, ["2026-03-29T01:00", "2026-03-30T00:30"]);
}

#[test]
fn intervals_stay_even_when_clocks_go_forward() {
    let steps = times("*/30 * * * *", Some("Europe/Stockholm"), "2026-03-29T00:15:00Z", 4);
    assert_eq!(
        steps,
        [
            "2026-03-29T00:30",
            "2026-03-29T01:00",
            "2026-03-29T01:30",
            "2026-03-29T02:00"
        ]
    );
}

/// In Stockholm, clocks go back from 03:00 (01:00 UTC) to 02:00 on 2026-10-25.
#[test]
fn a_fixed_time_that_occurs_twice_is_due_once() {
    let fixed = times("30 2 * * *", Some("Europe/Stockholm"), "2026-10-24T12:00:00Z", 2);
    assert_eq!(fixed, ["2026-10-25T00:30", "2026-10-26T01:30"]);
}

#[test]
fn intervals_stay_even_when_clocks_go_back() {
    let steps = times("*/30 * * * *", Some("Europe/Stockholm"), "2026-10-25T00:15:00Z", 4);
    assert_eq!(
        steps,
        [
            "2026-10-25T00:30",
            "2026-10-25T01:00",
            "2026-10-25T01:30",
            "2026-10-25T02:00"
        ]
    );
}

#[test]
fn due_times_increase_across_clock_changes_in_every_zone() {
    for zone in [
        "Europe/Stockholm",
        "America/New_York",
        "Australia/Lord_Howe",
        "Africa/Casablanca",
        "Asia/Kathmandu",
    ] {
        for text in ["*/7 * * * *", "30 1 * * *", "0 2 * * *", "15 */2 * * *", "59 23 * * *"] {
            let mut last = Timestamp::read("2026-01-01T00:00:00Z").expect("an instant");
            let end = Timestamp::read("2027-01-01T00:00:00Z").expect("an instant");
            let schedule = Schedule::read(text, Some(zone)).expect("a schedule");
            let mut count = 0;
            while last < end {
                let next = schedule.next_after(last).expect("it comes again");
                assert!(next > last, "{text} in {zone}: {next} after {last}");
                last = next;
                count += 1;
            }
            assert!(count >= 364, "{text} in {zone} came {count} times");
        }
    }
}

#[test]
fn invalid_schedules_are_refused() {
    let long = "0,".repeat(200) + "0 * * * *";
    for text in [
        "",
        "nonsense",
        "* * * *",
        "* * * * * *",
        "0 0 9 * * *",
        "@reboot",
        "@daily *",
        "61 * * * *",
        "0 0 30 2 *",
        "* * * * 9",
        &long,
    ] {
        let invalid = Schedule::read(text, None).expect_err("it is none");
        assert_eq!(invalid.field, "schedule", "{text}");
    }
    for zone in ["Mars/One", "", "+02:00"] {
        assert_eq!(
            Schedule::read("* * * * *", Some(zone)).expect_err("it is none").field,
            "timezone"
        );
    }
}

#[test]
fn no_due_time_is_after_the_end() {
    let at = |text| Timestamp::read(text).expect("an instant");
    let cron = Cron {
        id: CronId::mint(),
        ownership: Ownership::default(),
        assistant: AssistantId::of_graph("agent"),
        thread: None,
        schedule: Schedule::read("0 * * * *", None).expect("a schedule"),
        end: Some(at("2026-11-21T13:00:00Z")),
        enabled: true,
        keep_threads: false,
        due_at: None,
        request: RunRequest::default(),
        payload: Map::new(),
        metadata: Map::new(),
        created_at: Timestamp(0),
        updated_at: Timestamp(0),
    };
    assert_eq!(cron.next_after(at("2026-11-21T12:30:00Z")), cron.end);
    assert_eq!(cron.next_after(at("2026-11-21T13:00:00Z")), None);
}
