//! Families of metrics on a page: what all samples of a name have in common is written once.
//!
//! A page is the text that Prometheus reads, or a list that is sent elsewhere ([`super::otlp`]). Who fills it does not know
//! which, so both have the same figures.

use std::fmt;

use prometheus_client::encoding::{
    CounterValueEncoder, DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue,
    GaugeValueEncoder, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// Labels of a sample: names and values.
pub(super) type Labels<'a> = Vec<(&'static str, &'a str)>;

/// What a family is called.
pub(super) struct Name {
    name: &'static str,
    unit: Option<Unit>,
    help: &'static str,
}

/// A family without a unit.
pub(super) fn plain(name: &'static str, help: &'static str) -> Name {
    Name {
        name,
        unit: None,
        help,
    }
}

/// A family of bytes: the name gets `_bytes` behind it.
pub(super) fn bytes(name: &'static str, help: &'static str) -> Name {
    Name {
        name,
        unit: Some(Unit::Bytes),
        help,
    }
}

/// A family of seconds: the name gets `_seconds` behind it.
pub(super) fn seconds(name: &'static str, help: &'static str) -> Name {
    Name {
        name,
        unit: Some(Unit::Seconds),
        help,
    }
}

/// A family of temperatures: the name gets `_celsius` behind it.
pub(super) fn celsius(name: &'static str, help: &'static str) -> Name {
    Name {
        name,
        unit: Some(Unit::Celsius),
        help,
    }
}

/// What a family counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A value that goes up and down.
    Gauge,
    /// A value that only rises.
    Counter,
    /// How long things took.
    Histogram,
}

/// A figure.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Figure {
    Whole(u64),
    Real(f64),
    Times(Times),
}

impl From<u64> for Figure {
    fn from(figure: u64) -> Self {
        Self::Whole(figure)
    }
}

impl From<f64> for Figure {
    fn from(figure: f64) -> Self {
        Self::Real(figure)
    }
}

/// How long several things took.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Times {
    pub(super) sum_seconds: f64,
    /// Upper bounds in seconds, in their order, the last one infinite; and how many are above the bound before.
    pub(super) buckets: Vec<(f64, u64)>,
}

impl Times {
    /// How many.
    pub(super) fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }
}

impl From<Times> for Figure {
    fn from(times: Times) -> Self {
        Self::Times(times)
    }
}

impl EncodeGaugeValue for Figure {
    fn encode(&self, encoder: &mut GaugeValueEncoder<'_>) -> fmt::Result {
        match self {
            Self::Whole(figure) => EncodeGaugeValue::encode(figure, encoder),
            Self::Real(figure) => EncodeGaugeValue::encode(figure, encoder),
            Self::Times(_) => Err(fmt::Error),
        }
    }
}

impl EncodeCounterValue for Figure {
    fn encode(&self, encoder: &mut CounterValueEncoder<'_>) -> fmt::Result {
        match self {
            Self::Whole(figure) => EncodeCounterValue::encode(figure, encoder),
            Self::Real(figure) => EncodeCounterValue::encode(figure, encoder),
            Self::Times(_) => Err(fmt::Error),
        }
    }
}

/// A family in a list.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Family {
    pub(super) name: String,
    pub(super) unit: Option<&'static str>,
    pub(super) help: &'static str,
    pub(super) kind: Kind,
    /// Labels and figures.
    pub(super) samples: Vec<(Vec<(&'static str, String)>, Figure)>,
}

/// A page that is being written.
pub(super) enum Page<'a> {
    /// The text that Prometheus reads.
    Text(DescriptorEncoder<'a>),
    /// A list, and what its names begin with.
    List(&'static str, &'a mut Vec<Family>),
}

impl<'a> Page<'a> {
    pub(super) fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self::Text(encoder)
    }

    /// A value that goes up and down.
    pub(super) fn gauge(&mut self, name: Name, value: impl Into<Figure>) -> fmt::Result {
        self.family(name, Kind::Gauge, [(Vec::new(), value)])
    }

    /// A value that only rises. `_total` comes behind its name.
    pub(super) fn counter(&mut self, name: Name, value: impl Into<Figure>) -> fmt::Result {
        self.family(name, Kind::Counter, [(Vec::new(), value)])
    }

    /// The same value of several things.
    pub(super) fn gauges<'s, V: Into<Figure>>(
        &mut self,
        name: Name,
        samples: impl IntoIterator<Item = (Labels<'s>, V)>,
    ) -> fmt::Result {
        self.family(name, Kind::Gauge, samples)
    }

    /// The same count of several things.
    pub(super) fn counters<'s, V: Into<Figure>>(
        &mut self,
        name: Name,
        samples: impl IntoIterator<Item = (Labels<'s>, V)>,
    ) -> fmt::Result {
        self.family(name, Kind::Counter, samples)
    }

    /// The same times of several things.
    pub(super) fn histograms<'s>(
        &mut self,
        name: Name,
        samples: impl IntoIterator<Item = (Labels<'s>, Times)>,
    ) -> fmt::Result {
        self.family(name, Kind::Histogram, samples)
    }

    fn family<'s, V: Into<Figure>>(
        &mut self,
        name: Name,
        kind: Kind,
        samples: impl IntoIterator<Item = (Labels<'s>, V)>,
    ) -> fmt::Result {
        let encoder = match self {
            Self::Text(encoder) => encoder,
            Self::List(prefix, families) => {
                let owned = |(labels, figure): (Labels<'s>, V)| {
                    let labels = labels.into_iter();
                    let labels = labels.map(|(name, value)| (name, value.to_owned()));
                    (labels.collect(), figure.into())
                };
                families.push(Family {
                    name: format!("{prefix}_{}", name.name),
                    unit: name.unit.as_ref().map(symbol),
                    help: name.help,
                    kind,
                    samples: samples.into_iter().map(owned).collect(),
                });
                return Ok(());
            }
        };
        let kind = match kind {
            Kind::Gauge => MetricType::Gauge,
            Kind::Counter => MetricType::Counter,
            Kind::Histogram => MetricType::Histogram,
        };
        let unit = name.unit.as_ref();
        let mut family = encoder.encode_descriptor(name.name, name.help, unit, kind)?;
        for (labels, figure) in samples {
            let figure = figure.into();
            match labels.is_empty() {
                true => sample(&mut family, kind, &figure)?,
                false => sample(&mut family.encode_family(&labels)?, kind, &figure)?,
            }
        }
        Ok(())
    }
}

fn sample(encoder: &mut MetricEncoder<'_>, kind: MetricType, figure: &Figure) -> fmt::Result {
    match (kind, figure) {
        (MetricType::Counter, _) => encoder.encode_counter::<NoLabelSet, _, f64>(figure, None),
        (_, Figure::Times(times)) => encoder.encode_histogram::<NoLabelSet>(
            times.sum_seconds,
            times.count(),
            &times.buckets,
            None,
        ),
        (_, _) => encoder.encode_gauge(figure),
    }
}

/// The unit's symbol in the Unified Code for Units of Measure.
fn symbol(unit: &Unit) -> &'static str {
    match unit {
        Unit::Bytes => "By",
        Unit::Seconds => "s",
        _ => "",
    }
}
