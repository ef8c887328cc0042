//! Draws the state. Colours only repeat information that text or signs show.

use std::collections::VecDeque;

use api::types::{ActorRow, ActorsRow, InstanceRow, PercentilesUs, ServiceRow};
use model::{ActorSide, EventKind, InstanceId, InstanceState};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

use super::history::History;
use super::state::{Page, Prompt, Row, SortKey, Top, policies};
use display::event::{clock, event_sentence};
use display::table::{self, grouped, micros, or_dash, percent, short, span_ms};

/// The terminal's capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Theme {
    /// The sixteen standard colours.
    pub(super) colours: bool,
    /// Unicode blocks and boxes; otherwise ASCII.
    pub(super) unicode: bool,
}

impl Theme {
    /// From the environment: `NO_COLOR`, `TERM` and the locale. `ascii` disables Unicode.
    pub(super) fn of(ascii: bool) -> Theme {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        // The first of these variables that is set names the character set.
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .into_iter()
            .map(variable)
            .find(|value| !value.is_empty())
            .unwrap_or_default()
            .to_ascii_lowercase();
        Theme {
            colours: variable("NO_COLOR").is_empty() && variable("TERM") != "dumb",
            unicode: !ascii && (locale.contains("utf-8") || locale.contains("utf8")),
        }
    }

    /// The signs of a small chart, from empty to full.
    const fn steps(self) -> &'static [char] {
        if self.unicode {
            &[' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
        } else {
            &[' ', '.', ':', '-', '=', '+', '*', '%', '#']
        }
    }

    fn colour(self, colour: Color) -> Style {
        if self.colours {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }

    fn heading(self) -> Style {
        self.colour(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    fn alarm(self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    fn state(self, state: InstanceState) -> Style {
        match state {
            InstanceState::Active => self.colour(Color::Green),
            InstanceState::Draining | InstanceState::Stopping => self.colour(Color::Yellow),
            InstanceState::Failed => self.alarm(),
            InstanceState::Creating | InstanceState::Starting | InstanceState::Standby => {
                self.colour(Color::Blue)
            }
            InstanceState::Gone => Style::new(),
        }
    }
}

/// Draws the current page.
pub(super) fn draw(frame: &mut Frame<'_>, top: &Top, theme: Theme) {
    let [head, page, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    draw_head(frame, head, top, theme);
    match top.page {
        Page::Overview => draw_overview(frame, page, top, theme),
        Page::Flows => draw_flows(frame, page, top, theme),
        Page::Events => draw_events(frame, page, top, theme, "EVENTS"),
        Page::Actors => draw_actors(frame, page, top, theme),
        Page::Instance(id) => draw_instance(frame, page, top, theme, id),
        Page::Help => draw_help(frame, page, theme),
    }
    draw_foot(frame, foot, top, theme);
    if let Some(prompt) = &top.prompt {
        draw_prompt(frame, page, prompt, theme);
    }
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, top: &Top, theme: Theme) {
    let status = &top.observed.status;
    let mut lines = Vec::new();
    if top.was_seen {
        let engine = if status.engine.up {
            Span::raw(format!("engine {}", status.engine.driver))
        } else {
            let down = span_ms(status.engine.down_ms);
            Span::styled(
                format!("engine {} DOWN for {down}", status.engine.driver),
                theme.alarm(),
            )
        };
        lines.push(Line::from(vec![
            Span::styled(format!("inco {}", status.version), theme.heading()),
            Span::raw(format!(
                "  {}  up {}  ",
                cut(&status.file, 30),
                span_ms((status.uptime_s * 1000.0) as u64)
            )),
            engine,
            Span::styled(narrowed(top), theme.heading()),
        ]));
        let sum = |rate: fn(&api::types::UplinkRow) -> f64| status.uplinks.iter().map(rate).sum::<f64>();
        let lost = Span::styled(
            format!("lost {}/s", short(top.lost_pps.round())),
            if top.lost_pps >= 1.0 {
                theme.alarm()
            } else {
                Style::new()
            },
        );
        let down: Vec<&str> = status
            .uplinks
            .iter()
            .filter(|uplink| !uplink.up)
            .map(|uplink| uplink.name.as_str())
            .collect();
        let mut line = vec![
            Span::raw(format!(
                "offered {}/s  returned {}/s  ",
                short(sum(|uplink| uplink.received_pps)),
                short(sum(|uplink| uplink.sent_pps))
            )),
            lost,
        ];
        if !down.is_empty() {
            line.push(Span::styled(
                format!("  DOWN: {}", plain(&down.join(" "))),
                theme.alarm(),
            ));
        }
        line.push(Span::raw(format!(
            "  flows {} of {}  in flight {}",
            grouped(status.live_flows),
            grouped(status.flow_limit),
            grouped(status.accounting.in_flight),
        )));
        lines.push(Line::from(line));
    } else {
        lines.push(Line::styled("inco top", theme.heading()));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

/// The filter and the order of instances, where they are not those of the beginning.
fn narrowed(top: &Top) -> String {
    let mut text = String::new();
    if !top.filter.is_empty() {
        text.push_str(&format!("  filter {}", cut(&top.filter, 16)));
    }
    if top.sort_by != SortKey::Id {
        text.push_str(&format!("  by {}", top.sort_by.name()));
    }
    text
}

/// Keys, the most important first. Those that do not fit are in the help.
const KEYS: [&str; 10] = [
    "? help",
    "q quit",
    "Tab page",
    "Enter view",
    "/ filter",
    "o sort",
    "d drain",
    "u undrain",
    "+/-/s scale",
    "p policy",
];

/// The keys that fit into that many columns.
fn keys_within(columns: usize) -> String {
    let mut text = String::new();
    for key in KEYS {
        let gap = if text.is_empty() { "" } else { "  " };
        if text.len() + gap.len() + key.len() > columns {
            break;
        }
        text.push_str(gap);
        text.push_str(key);
    }
    text
}

fn draw_foot(frame: &mut Frame<'_>, area: Rect, top: &Top, theme: Theme) {
    let columns = usize::from(area.width);
    let line = match (&top.gone, &top.outcome) {
        (Some(reason), _) => {
            let words = if top.was_seen {
                format!("NO ANSWER, showing the last figures: {reason}")
            } else {
                format!("waiting: {reason}")
            };
            Line::styled(
                cut(&words, columns),
                theme.alarm().add_modifier(Modifier::REVERSED),
            )
        }
        _ if top.is_filtering => Line::raw(format!(
            "filter: {}_   Enter apply  Esc clear",
            cut(&top.filter, columns.saturating_sub(34))
        )),
        (None, Some(Ok(result))) => Line::styled(cut(result, columns), theme.colour(Color::Green)),
        (None, Some(Err(error))) => Line::styled(cut(&format!("REFUSED: {error}"), columns), theme.alarm()),
        (None, None) => Line::raw(keys_within(columns)),
    };
    frame.render_widget(Paragraph::new(line), area);
}

fn draw_overview(frame: &mut Frame<'_>, area: Rect, top: &Top, theme: Theme) {
    let services = top.services().count() as u16 + 1;
    let instances = top.instances().len() as u16 + 1;
    // Instances have priority: services get at most a third, events the rest, and at least four lines if possible.
    let [services_area, instances_area, events_area] = Layout::vertical([
        Constraint::Max(services.min(area.height / 3).max(2)),
        Constraint::Max(instances),
        Constraint::Min(if area.height >= 14 { 5 } else { 0 }),
    ])
    .areas(area);
    draw_services(frame, services_area, top, theme);
    draw_instances(frame, instances_area, top, theme);
    draw_events(frame, events_area, top, theme, "EVENTS");
}

/// The range of lines that fits and includes the selected one.
fn window(lines: usize, selected: Option<usize>, height: usize) -> std::ops::Range<usize> {
    let start = match selected {
        Some(selected) if selected >= height => selected + 1 - height,
        _ => 0,
    };
    start..lines.min(start + height)
}

/// A heading and as many of its lines as fit.
fn list(
    frame: &mut Frame<'_>,
    area: Rect,
    heading: String,
    lines: Vec<Line<'_>>,
    selected: Option<usize>,
    theme: Theme,
) {
    let Some(height) = usize::from(area.height).checked_sub(1) else {
        return;
    };
    let shown = window(lines.len(), selected, height);
    let hidden = lines.len() - shown.len();
    let more = if hidden > 0 {
        format!("  ({hidden} more)")
    } else {
        String::new()
    };
    let mut all = vec![Line::styled(format!("{heading}{more}"), theme.heading())];
    all.extend(lines.into_iter().skip(shown.start).take(shown.len()));
    frame.render_widget(Paragraph::new(all), area);
}

fn mark(is_selected: bool) -> &'static str {
    if is_selected { "> " } else { "  " }
}

fn lit(is_selected: bool) -> Style {
    if is_selected {
        Style::new().add_modifier(Modifier::REVERSED)
    } else {
        Style::new()
    }
}

fn draw_services(frame: &mut Frame<'_>, area: Rect, top: &Top, theme: Theme) {
    let heading = format!(
        "  {:<10}{:>9}{:>7}{:>6}{:>9}{:>9}{:>6} {}",
        "SERVICE", "ACTIVE", "LIMITS", "LOAD", "OFFERED", "BACK", "FLOWS", "POLICIES"
    );
    let is_selected = |row: &ServiceRow| top.selected == Some(Row::Service(row.name.clone()));
    let lines = top.services().map(|row| {
        let active = format!(
            "{}/{}{}",
            row.active,
            row.desired,
            if row.fixed { " man." } else { "" }
        );
        let text = format!(
            "{}{:<10}{:>9}{:>7}{:>6}{:>9}{:>9}{:>6} {}",
            mark(is_selected(row)),
            cut(&row.name, 10),
            active,
            format!("{}-{}", row.min, row.max),
            or_dash(row.highest_utilisation, |share| format!("{:.0}%", share * 100.0)),
            format!("{}/s", short(row.offered_pps)),
            format!("{}/s", short(row.returned_pps)),
            grouped(row.live_flows),
            match &row.failing {
                Some(failing) => failing.clone(),
                None => format!("{}/{}", row.scheduler, row.autoscaler),
            },
        );
        Line::styled(cut(&text, usize::from(area.width)), lit(is_selected(row)))
    });
    let selected = top.services().position(is_selected);
    list(frame, area, heading, lines.collect(), selected, theme);
}

/// Columns of each of the four small charts in an instance's row: a quarter of the space beside the text.
fn chart_columns(width: u16) -> usize {
    usize::from(width.saturating_sub(54) / 4).clamp(3, 40)
}

fn draw_instances(frame: &mut Frame<'_>, area: Rect, top: &Top, theme: Theme) {
    let shown = top.instances();
    let place = place_columns(&shown);
    let columns = chart_columns(area.width.saturating_sub(place as u16));
    let at = place_heading(place);
    let heading = format!(
        "  {:>4} {:<9}{at:<place$}{:<9}{:>7} {:columns$} {:>6} {:columns$} {:>5} {:columns$} {:>5} {:columns$}",
        "ID", "INSTANCE", "STATE", "RATE/S", "", "LOST/S", "", "FLOWS", "", "RING", ""
    );
    let most = |values: fn(&History) -> &VecDeque<f64>| {
        let all = shown.iter().filter_map(|row| top.histories.of(row.id));
        all.flat_map(|history| values(history).iter().rev().take(columns))
            .copied()
            .fold(0.0, f64::max)
    };
    // One scale per column of charts, so that instances are comparable.
    let (rates, losses, flows) = (
        most(|history| &history.rate),
        most(|history| &history.lost),
        most(|history| &history.flows),
    );
    let is_selected = |row: &InstanceRow| top.selected == Some(Row::Instance(row.id));
    let empty = History::default();
    let lines = shown.iter().map(|row| {
        let history = top.histories.of(row.id).unwrap_or(&empty);
        let (base, which, state) = instance_cells(row, place, is_selected(row), theme);
        let lost = history.lost_pps();
        let chart = |values: &VecDeque<f64>, most| spark(values, columns, most, theme);
        Line::from(vec![
            which,
            state,
            Span::styled(
                format!("{:>7} {} ", short(row.to_pps), chart(&history.rate, rates)),
                base,
            ),
            Span::styled(
                format!("{:>6} {} ", short(lost.round()), chart(&history.lost, losses)),
                if lost >= 1.0 {
                    base.patch(theme.alarm())
                } else {
                    base
                },
            ),
            Span::styled(
                format!(
                    "{:>5} {} ",
                    short(row.live_flows as f64),
                    chart(&history.flows, flows)
                ),
                base,
            ),
            Span::styled(
                format!(
                    "{:>4.0}% {}",
                    row.ring_occupancy * 100.0,
                    chart(&history.ring, 1.0)
                ),
                base,
            ),
        ])
    });
    let selected = shown.iter().position(|row| is_selected(row));
    list(frame, area, heading, lines.collect(), selected, theme);
}

/// Columns for the places of instances: none where there are none.
fn place_columns(rows: &[&InstanceRow]) -> usize {
    let names = rows.iter().filter_map(|row| row.place.as_ref());
    let longest = names.map(|name| name.chars().count()).max();
    longest.map_or(0, |longest| longest.clamp(5, 12) + 1)
}

/// The heading above them.
fn place_heading(columns: usize) -> &'static str {
    if columns > 0 { "PLACE" } else { "" }
}

/// The style of an instance's line, and its first cells: which one it is, and its state.
fn instance_cells(
    row: &InstanceRow,
    place: usize,
    is_selected: bool,
    theme: Theme,
) -> (Style, Span<'static>, Span<'static>) {
    let base = lit(is_selected);
    let at = cut(row.place.as_deref().unwrap_or_default(), place.saturating_sub(1));
    let which = format!(
        "{}{:>4} {:<9}{at:<place$}",
        mark(is_selected),
        row.id.0,
        cut(&row.service, 8)
    );
    let state = format!("{:<9}", row.state.name());
    (
        base,
        Span::styled(which, base),
        Span::styled(state, base.patch(theme.state(row.state))),
    )
}

/// Flows of each instance now and in the past: one row per instance, one column per point, all on one scale.
fn draw_flows(frame: &mut Frame<'_>, area: Rect, top: &Top, theme: Theme) {
    let shown = top.instances();
    let total: u64 = top.observed.instances.iter().map(|row| row.live_flows).sum();
    let place = place_columns(&shown);
    let at = place_heading(place);
    let text = 42 + place;
    let bar = (usize::from(area.width).saturating_sub(text) / 3).clamp(6, 40);
    let columns = usize::from(area.width).saturating_sub(text + bar).max(4);
    let most = top.histories.most_flows();
    let heading = format!(
        "  {:>4} {:<9}{at:<place$}{:<9}{:>6}{:>7}  {:<bar$}  {}",
        "ID", "INSTANCE", "STATE", "FLOWS", "SHARE", "NOW", "HISTORY, newest right"
    );
    let empty = History::default();
    let is_selected = |row: &InstanceRow| top.selected == Some(Row::Instance(row.id));
    let lines = shown.iter().map(|row| {
        let history = top.histories.of(row.id).unwrap_or(&empty);
        let share = if total > 0 {
            row.live_flows as f64 / total as f64
        } else {
            0.0
        };
        let (base, which, state) = instance_cells(row, place, is_selected(row), theme);
        Line::from(vec![
            which,
            state,
            Span::styled(
                format!(
                    "{:>6}{:>7}  {}  {}",
                    grouped(row.live_flows),
                    percent(share),
                    level(row.live_flows as f64, most, bar, theme),
                    spark(&history.flows, columns, most, theme)
                ),
                base,
            ),
        ])
    });
    let selected = shown.iter().position(|row| is_selected(row));
    list(frame, area, heading, lines.collect(), selected, theme);
}

fn draw_events(frame: &mut Frame<'_>, area: Rect, top: &Top, theme: Theme, heading: &str) {
    event_list(frame, area, top, theme, heading, |_| true);
}

fn event_list(
    frame: &mut Frame<'_>,
    area: Rect,
    top: &Top,
    theme: Theme,
    heading: &str,
    is_selected_by_filter: impl Fn(&model::Event) -> bool,
) {
    let Some(height) = usize::from(area.height).checked_sub(1) else {
        return;
    };
    let mut lines = vec![Line::styled(heading.to_owned(), theme.heading())];
    // Newest first, because users look for recent events.
    for event in top
        .events
        .iter()
        .rev()
        .filter(|event| is_selected_by_filter(event))
        .take(height)
    {
        lines.push(Line::from(vec![
            Span::styled(clock(event.unix_ms), theme.colour(Color::DarkGray)),
            Span::raw(" "),
            Span::raw(cut(
                &event_sentence(event),
                usize::from(area.width).saturating_sub(clock(event.unix_ms).len() + 1),
            )),
        ]));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

/// Services of actors: both sides of each, what is on them, and what moved, when and why.
fn draw_actors(frame: &mut Frame<'_>, area: Rect, top: &Top, theme: Theme) {
    let mut lines = Vec::new();
    for row in &top.observed.actors {
        lines.push(Line::styled(
            plain(&format!("{} (moves {})", row.service, row.moves)),
            theme.heading(),
        ));
        lines.extend(
            row.sides
                .iter()
                .flat_map(|side| side_lines(row, side.side, theme)),
        );
        let elsewhere = row.actors.iter().filter(|actor| actor.side.is_none());
        lines.extend(elsewhere.map(|actor| Line::raw(actor_text(actor))));
    }
    if lines.is_empty() {
        lines.push(Line::raw(
            "no service of actors (kind = \"actors\") is configured",
        ));
    }
    let own = lines.len() as u16 + 1;
    let [list_area, events_area] = Layout::vertical([
        Constraint::Max(own.min(area.height * 2 / 3)),
        Constraint::Min(if area.height >= 14 { 5 } else { 0 }),
    ])
    .areas(area);
    let heading = format!(
        "  {:<14}{:<5}{:<8}{:>7}{:>8}{:>8}{:>7}{:>6}{:>7}{:>6}",
        "ACTOR", "MODE", "STATE", "WAIT", "MEAN", "TAIL", "REQ/S", "LOAD", "OBJS", "MOVES"
    );
    list(frame, list_area, heading, lines, None, theme);
    event_list(frame, events_area, top, theme, "WHAT MOVED, AND WHY", |event| {
        matches!(event.kind, EventKind::Actor { .. } | EventKind::ActorSide { .. })
    });
}

/// A side and the actors there.
fn side_lines(row: &ActorsRow, side: ActorSide, theme: Theme) -> Vec<Line<'static>> {
    let Some(of) = row.sides.iter().find(|of| of.side == side) else {
        return Vec::new();
    };
    let state = if of.runs { "runs" } else { "DOES NOT RUN" };
    let words = format!(
        " {:<5}{state}  {} busy {} of {} cores  requests {}  answers {}  starts {}",
        side.name(),
        level(of.busy, 1.0, 10, theme),
        percent(of.busy),
        of.cores,
        grouped(of.requests),
        grouped(of.answers),
        of.starts,
    );
    let style = if of.runs { Style::new() } else { theme.alarm() };
    let mut lines = vec![Line::styled(words, style)];
    let here = row.actors.iter().filter(|actor| actor.side == Some(side));
    lines.extend(here.map(|actor| Line::raw(actor_text(actor))));
    lines
}

fn actor_text(of: &ActorRow) -> String {
    plain(&format!(
        "  {:<14}{:<5}{:<8}{:>7}{:>8}{:>8}{:>7}{:>6.2}{:>7}{:>6}",
        cut(&of.actor, 13),
        of.mode,
        of.state,
        grouped(of.mailbox),
        micros(of.mean_us),
        micros(of.tail_us),
        short(of.requests_per_s),
        of.load,
        grouped(of.objects),
        grouped(of.migrations),
    ))
}

fn within(of: PercentilesUs) -> String {
    format!("{}/{}", micros(of.p50), micros(of.p99))
}

fn draw_instance(frame: &mut Frame<'_>, area: Rect, top: &Top, theme: Theme, id: InstanceId) {
    let Some(row) = top.instance(id) else {
        let text = format!("Instance {id} is removed; press Esc to go back.");
        frame.render_widget(Paragraph::new(text), area);
        return;
    };
    let [words, charts, flows, events] = Layout::vertical([
        Constraint::Length(5),
        Constraint::Length(8.min(area.height.saturating_sub(5))),
        Constraint::Min(0),
        Constraint::Length(if area.height >= 20 { 5 } else { 0 }),
    ])
    .areas(area);
    let lines = vec![
        Line::from(vec![
            Span::styled(
                format!("INSTANCE {id} of {}  ", plain(&row.service)),
                theme.heading(),
            ),
            Span::styled(row.state.name(), theme.state(row.state)),
            Span::raw(format!(" for {} ({})", span_ms(row.state_ms), plain(&row.reason))),
        ]),
        Line::raw(format!(
            "{}  slot {}{}",
            match (&row.address, &row.name) {
                (Some(address), Some(name)) => format!("at {}, {}", plain(address), plain(name)),
                (Some(address), None) => format!("at {}", plain(address)),
                (None, _) => format!(
                    "container {}  process {}",
                    or_dash(row.container.as_deref(), plain),
                    or_dash(row.pid, |pid| pid.to_string())
                ),
            },
            or_dash(row.slot, |slot| slot.to_string()),
            if row.adopted { "  adopted" } else { "" }
        )),
        Line::raw(format!(
            "capacity {} pps  CPU {} of {}  busy {}  gap {}  memory {}",
            or_dash(row.capacity_pps, short),
            or_dash(row.cpu, percent),
            or_dash(row.cpu_quota, |cpus| format!("{cpus:.2}")),
            or_dash(row.busy, percent),
            or_dash(row.gap_us, micros),
            or_dash(row.memory_bytes, |bytes| format!("{} MiB", bytes >> 20)),
        )),
        Line::raw(format!(
            "packets {} in, {} out, {} dropped  power {}",
            grouped(row.to_packets),
            grouped(row.back_packets),
            grouped(row.dropped_packets),
            or_dash(row.watts, |of| of.to_string()),
        )),
        Line::raw(format!(
            "held up {}  p50/p99 in ring {}, in function {}",
            percent(row.held_up),
            or_dash(row.ring_wait_us, within),
            or_dash(row.function_us, within),
        )),
    ];
    frame.render_widget(Paragraph::new(lines), words);
    draw_figures(frame, charts, top, row, theme);
    let heading = format!("LARGEST FLOWS{:>42}{:>9}{:>14}", "PPS", "+-", "PACKETS");
    let lines = top.observed.flows.iter().map(|flow| {
        Line::raw(format!(
            "{:<46}{:>9}{:>9}{:>14}",
            cut(&flow.flow, 46),
            or_dash(flow.pps, short),
            or_dash(flow.error_pps, short),
            grouped(flow.packets[0].saturating_add(flow.packets[1]))
        ))
    });
    list(frame, flows, heading, lines.collect(), None, theme);
    event_list(frame, events, top, theme, "EVENTS OF THE INSTANCE", |event| {
        event.instance == Some(id)
    });
}

/// The four figures of an instance, each two lines high.
fn draw_figures(frame: &mut Frame<'_>, area: Rect, top: &Top, row: &InstanceRow, theme: Theme) {
    let empty = History::default();
    let history = top.histories.of(row.id).unwrap_or(&empty);
    let columns = usize::from(area.width).saturating_sub(26);
    let most = |values: &VecDeque<f64>| {
        let shown = values.iter().rev().take(columns);
        shown.copied().fold(0.0, f64::max)
    };
    let mut lines = Vec::new();
    let figures = [
        (
            "rate",
            format!("{}/s", short(row.to_pps)),
            &history.rate,
            most(&history.rate),
            "/s",
        ),
        (
            "lost",
            format!("{}/s", short(history.lost_pps().round())),
            &history.lost,
            most(&history.lost),
            "/s",
        ),
        (
            "flows",
            grouped(row.live_flows),
            &history.flows,
            most(&history.flows),
            "",
        ),
        ("ring", percent(row.ring_occupancy), &history.ring, 1.0, ""),
    ];
    for (name, now, values, most, unit) in figures {
        let full = if name == "ring" {
            "100%".to_owned()
        } else {
            format!("{}{unit}", short(most))
        };
        let [upper, lower] = tall_spark(values, columns, most, theme);
        lines.push(Line::raw(format!("{name:<6}{now:>10} {upper} {full}")));
        lines.push(Line::raw(format!("{:<16} {lower} 0", "")));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_help(frame: &mut Frame<'_>, area: Rect, theme: Theme) {
    let keys = [
        ("q, Ctrl-C", "quit"),
        ("Tab, 1 2 3 4", "next page; overview, flows, events, actors"),
        ("up down, j k", "select a service or an instance"),
        ("Enter, right", "view an instance and its largest flows"),
        ("Esc, left", "back to the overview"),
        ("d / u", "drain the instance / cancel its drain"),
        (
            "+ - s",
            "add an instance, remove one, or set the number, of the service",
        ),
        ("/", "show only rows that contain a text: service/id and state"),
        ("o", "sort instances by id, rate, losses, flows or ring"),
        ("a", "let the autoscaler decide again"),
        ("p", "change the scheduler or autoscaler of the service"),
        ("y / n", "confirm / cancel"),
    ];
    let mut lines = vec![Line::styled("KEYS", theme.heading())];
    lines.extend(keys.map(|(key, what)| Line::raw(format!("  {key:<14}{what}"))));
    lines.push(Line::raw(""));
    lines.push(Line::raw(
        "Charts show one column per update, the newest at the right. Rates, losses and flows of all instances have \
         a common scale; the scale of a ring is from empty to full. No action runs without a y.",
    ));
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), area);
}

fn draw_prompt(frame: &mut Frame<'_>, area: Rect, prompt: &Prompt, theme: Theme) {
    let lines: Vec<Line<'_>> = match prompt {
        Prompt::Confirm { question, .. } => {
            vec![
                Line::raw(plain(question)),
                Line::raw(""),
                Line::raw("y confirm    n cancel"),
            ]
        }
        Prompt::Count { service, digits } => vec![
            Line::raw(format!(
                "How many active instances of {}?  {digits}_",
                plain(service)
            )),
            Line::raw(""),
            Line::raw("Enter continue    Esc cancel"),
        ],
        Prompt::Policy { service, at } => {
            let all = policies();
            let height = usize::from(area.height).saturating_sub(6).max(1);
            let mut lines = vec![Line::raw(format!("Which policy for {}?", plain(service)))];
            for index in window(all.len(), Some(*at), height) {
                if let Some((kind, name)) = all.get(index) {
                    let text = format!("{}{kind:<11}{name}", mark(index == *at));
                    lines.push(Line::styled(text, lit(index == *at)));
                }
            }
            lines.push(Line::raw("Enter continue    Esc cancel"));
            lines
        }
    };
    let width = area.width.min(64);
    let inner = usize::from(width.saturating_sub(4)).max(1);
    let height: usize = lines.iter().map(|line| line.width().div_ceil(inner).max(1)).sum();
    let height = (height as u16 + 2).min(area.height);
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    let mut block = Block::bordered().padding(ratatui::widgets::Padding::horizontal(1));
    if !theme.unicode {
        block = block.border_set(ASCII_BORDER);
    }
    frame.render_widget(Clear, place);
    frame.render_widget(
        Paragraph::new(lines).wrap(Wrap { trim: false }).block(block),
        place,
    );
}

const ASCII_BORDER: ratatui::symbols::border::Set<'_> = ratatui::symbols::border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

/// The newest values as one sign each, right-aligned; `most` is a full one. Every value above 0 is visible.
fn spark(values: &VecDeque<f64>, columns: usize, most: f64, theme: Theme) -> String {
    let steps = theme.steps();
    let full = steps.len() - 1;
    let sign = |value: &f64| {
        let step = scaled(*value, most, full);
        steps.get(step).copied().unwrap_or(' ')
    };
    let shown: Vec<char> = values.iter().rev().take(columns).map(sign).collect();
    let empty = std::iter::repeat_n(' ', columns.saturating_sub(shown.len()));
    empty.chain(shown.into_iter().rev()).collect()
}

/// Like [`spark`] in two lines, the upper one first.
fn tall_spark(values: &VecDeque<f64>, columns: usize, most: f64, theme: Theme) -> [String; 2] {
    let steps = theme.steps();
    let full = steps.len() - 1;
    let mut lines = [String::new(), String::new()];
    let shown: Vec<usize> = values
        .iter()
        .rev()
        .take(columns)
        .map(|value| scaled(*value, most, 2 * full))
        .collect();
    let empty = std::iter::repeat_n(0, columns.saturating_sub(shown.len()));
    for step in empty.chain(shown.into_iter().rev()) {
        let [upper, lower] = &mut lines;
        upper.extend(steps.get(step.saturating_sub(full)));
        lower.extend(steps.get(step.min(full)));
    }
    lines
}

/// A value on a scale from 0 to `full` steps; every value above 0 is at least 1.
fn scaled(value: f64, most: f64, full: usize) -> usize {
    // Also if one of them is NaN.
    if !(value > 0.0 && most > 0.0) {
        return 0;
    }
    let step = (value / most * full as f64).round() as usize;
    step.clamp(1, full)
}

/// A bar with a length proportional to the value.
fn level(value: f64, most: f64, columns: usize, theme: Theme) -> String {
    let long = scaled(value, most, columns);
    let sign = if theme.unicode { '█' } else { '#' };
    let bar: String = std::iter::repeat_n(sign, long).collect();
    format!("{bar:<columns$}")
}

/// External text without control characters.
fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// The beginning of a text, with `~` at the end if it was shortened.
fn cut(text: &str, columns: usize) -> String {
    table::cut(&plain(text), columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNICODE: Theme = Theme {
        colours: false,
        unicode: true,
    };

    #[test]
    fn the_newest_values_are_at_the_right() {
        let values = VecDeque::from([1.0, 2.0, 4.0, 8.0]);
        assert_eq!(spark(&values, 6, 8.0, UNICODE), "  ▁▂▄█");
        assert_eq!(spark(&values, 2, 8.0, UNICODE), "▄█");
        assert_eq!(spark(&VecDeque::new(), 2, 8.0, UNICODE), "  ");
        let ascii = Theme {
            unicode: false,
            ..UNICODE
        };
        assert_eq!(spark(&values, 4, 8.0, ascii), ".:=#");
        assert_eq!(tall_spark(&values, 4, 8.0, UNICODE), ["   █", "▂▄██"]);
    }

    #[test]
    fn what_is_more_than_nothing_is_seen() {
        assert_eq!(scaled(0.0, 10.0, 8), 0);
        assert_eq!(scaled(1e-9, 10.0, 8), 1);
        assert_eq!(scaled(99.0, 10.0, 8), 8);
        for odd in [f64::NAN, -1.0, f64::NEG_INFINITY] {
            assert_eq!(scaled(odd, 10.0, 8), 0);
            assert_eq!(scaled(1.0, odd, 8), 0);
        }
        assert_eq!(scaled(f64::INFINITY, 10.0, 8), 8);
    }

    #[test]
    fn the_selected_line_is_among_those_shown() {
        assert_eq!(window(10, None, 4), 0..4);
        assert_eq!(window(10, Some(3), 4), 0..4);
        assert_eq!(window(10, Some(9), 4), 6..10);
        assert_eq!(window(2, Some(1), 4), 0..2);
    }

    #[test]
    fn help_fits_any_width() {
        for columns in [8, 40, 80, 200] {
            let keys = keys_within(columns);
            assert!(keys.starts_with("? help") && keys.len() <= columns, "{keys}");
        }
        assert!(keys_within(200).ends_with("p policy"));
    }

    #[test]
    fn names_of_others_move_no_cursor() {
        assert_eq!(cut("a\u{1b}[2Jb", 12), "a [2Jb");
        assert_eq!(cut("firewall", 5), "fire~");
    }
}
