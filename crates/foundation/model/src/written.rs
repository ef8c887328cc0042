//! Strict JSON for hand-written input. serde accepts what is usually a mistake in such text: of a duplicate
//! key it takes the last value, and it reads a list as an object's fields in source order, or an empty list
//! as all defaults. This module rejects both.

use std::fmt;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};

/// Parses a text.
///
/// # Errors
/// `serde_json`'s, with line and column, and an error that names a duplicate key.
pub fn parse(text: &str) -> Result<Value, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Once { path: String::new() }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// Parses a value without duplicate keys; `path` leads to it.
struct Once {
    path: String,
}

impl<'de> DeserializeSeed<'de> for Once {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Once {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        let item = |index: usize| Once {
            path: format!("{}[{index}]", self.path),
        };
        while let Some(value) = list.next_element_seed(item(values.len()))? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut values = Map::new();
        while let Some(key) = object.next_key::<String>()? {
            let path = match self.path.as_str() {
                "" => key.clone(),
                path => format!("{path}.{key}"),
            };
            if values.contains_key(&key) {
                return Err(A::Error::custom(format_args!("`{path}` is given twice")));
            }
            let value = object.next_value_seed(Once { path })?;
            values.insert(key, value);
        }
        Ok(Value::Object(values))
    }
}

/// A deserializer that accepts a list only for a list.
#[derive(Clone, Copy, Debug)]
pub struct Written<'a>(pub &'a Value);

impl<'de> IntoDeserializer<'de, serde_json::Error> for Written<'de> {
    type Deserializer = Written<'de>;

    fn into_deserializer(self) -> Written<'de> {
        self
    }
}

impl<'de> Deserializer<'de> for Written<'de> {
    type Error = serde_json::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, serde_json::Error> {
        match self.0 {
            Value::Array(values) => {
                let mut list = SeqDeserializer::new(values.iter().map(Written));
                let read = visitor.visit_seq(&mut list)?;
                list.end()?;
                Ok(read)
            }
            Value::Object(values) => {
                let fields = values.iter().map(|(key, value)| (key.as_str(), Written(value)));
                let mut object = MapDeserializer::new(fields);
                let read = visitor.visit_map(&mut object)?;
                object.end()?;
                Ok(read)
            }
            value => value.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, serde_json::Error> {
        if self.0.is_array() {
            return Err(serde_json::Error::invalid_type(Unexpected::Seq, &"an object"));
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, serde_json::Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, serde_json::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, serde_json::Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct
        map identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[test]
    fn a_duplicate_key_is_named() {
        let error = parse(r#"{"a":{"b":[{"c":1},{"c":1,"c":2}]}}"#).unwrap_err();
        assert!(
            error.to_string().starts_with("`a.b[1].c` is given twice"),
            "{error}"
        );
        let text = r#"{"a":[null,true,-1,2,0.5,"x",{}],"b":[]}"#;
        assert_eq!(parse(text).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        assert!(parse("{} {}").is_err());
    }

    #[test]
    fn a_list_is_not_accepted_as_an_object() {
        #[derive(Debug, Default, PartialEq, Deserialize)]
        #[serde(default)]
        struct Inner {
            number: u8,
            list: Vec<u8>,
            pair: Option<(u8, u8)>,
        }
        let read =
            |value: Value| Vec::<Inner>::deserialize(Written(&value)).map_err(|error| error.to_string());
        let read_back = read(serde_json::json!([{"number": 1, "list": [], "pair": [2, 3]}, {}]));
        assert_eq!(read_back.unwrap().len(), 2);
        for wrong in [serde_json::json!([[]]), serde_json::json!([[1, [], null]])] {
            assert!(read(wrong).unwrap_err().contains("expected an object"));
        }
        assert!(read(serde_json::json!([{"pair": [1, 2, 3]}])).is_err());
    }
}
