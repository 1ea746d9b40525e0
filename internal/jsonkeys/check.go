package jsonkeys

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Check compares the JSON document data with the type of v, which is a value or a pointer that encoding/json could
// decode it into. A document with no faults decodes without an error. Keys must match in case. What is decoded into
// an interface, a json.RawMessage or by an UnmarshalJSON is checked by decoding it and no further. null is taken
// everywhere, as by encoding/json.
//
// The error is for data that is not one JSON document; it says where it stops being one.
func Check(data []byte, v any) (Faults, error) {
	if err := syntax(data); err != nil {
		return nil, err
	}
	var c checker
	c.value(data, reflect.TypeOf(v), "")
	return c.faults, nil
}

func syntax(data []byte) error {
	var raw json.RawMessage
	err := json.Unmarshal(data, &raw)
	var syntaxErr *json.SyntaxError
	if errors.As(err, &syntaxErr) {
		line := 1 + bytes.Count(data[:min(int(syntaxErr.Offset), len(data))], []byte("\n"))
		return fmt.Errorf("decode JSON: byte %d, line %d: %w", syntaxErr.Offset, line, err)
	}
	if err != nil {
		return fmt.Errorf("decode JSON: %w", err)
	}
	return nil
}

type checker struct{ faults Faults }

func (c *checker) fault(path, format string, args ...any) {
	c.faults.Add(path, fmt.Sprintf(format, args...))
}

var (
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// value checks one value, which is well-formed JSON.
func (c *checker) value(raw []byte, t reflect.Type, path string) {
	raw = bytes.TrimSpace(raw)
	for t != nil && t.Kind() == reflect.Pointer && !t.Implements(jsonUnmarshaler) {
		t = t.Elem()
	}
	if t == nil || t.Kind() == reflect.Interface || string(raw) == "null" {
		return
	}
	if reflect.PointerTo(t).Implements(jsonUnmarshaler) {
		c.decode(raw, t, path)
		return
	}
	if reflect.PointerTo(t).Implements(textUnmarshaler) {
		if raw[0] != '"' {
			c.mismatch(path, "a string", raw)
			return
		}
		c.decode(raw, t, path)
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		c.object(raw, path, func(key string) (reflect.StructField, bool) { return field(t, key) }, func() []string { return Keys(t) })
	case reflect.Map:
		c.object(raw, path, func(string) (reflect.StructField, bool) { return reflect.StructField{Type: t.Elem()}, true }, nil)
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 && raw[0] == '"' {
			c.decode(raw, t, path)
			return
		}
		c.array(raw, t, path)
	default:
		c.scalar(raw, t, path)
	}
}

// object checks each key of an object; lookup gives the field that it is decoded into.
func (c *checker) object(raw []byte, path string, lookup func(string) (reflect.StructField, bool), known func() []string) {
	if raw[0] != '{' {
		c.mismatch(path, "an object", raw)
		return
	}
	seen := map[string]bool{}
	dec := json.NewDecoder(bytes.NewReader(raw))
	_, _ = dec.Token() // the brace: the syntax is known to be right here and below
	for dec.More() {
		token, _ := dec.Token()
		key, _ := token.(string)
		var value json.RawMessage
		_ = dec.Decode(&value)
		if seen[key] {
			c.fault(path, "key %q is given more than once", key)
		}
		seen[key] = true
		switch f, ok := lookup(key); {
		case !ok:
			c.fault(path, "%s", Unknown(key, known()))
		case quoted(f):
			c.quoted(key, value, f, KeyPath(path, key))
		default:
			c.value(value, f.Type, KeyPath(path, key))
		}
	}
}

// quoted tells whether a field is a number or the like inside a string.
func quoted(f reflect.StructField) bool {
	_, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	return slices.Contains(strings.Split(options, ","), "string")
}

// quoted checks a value of such a field, which only a struct that has it can decode.
func (c *checker) quoted(key string, raw []byte, f reflect.StructField, path string) {
	name, _ := json.Marshal(key)
	object := fmt.Appendf(nil, "{%s:%s}", name, raw)
	if json.Unmarshal(object, reflect.New(reflect.StructOf([]reflect.StructField{f})).Interface()) != nil {
		c.mismatch(path, fmt.Sprintf("a string with a JSON %s inside", f.Type), raw)
	}
}

func (c *checker) array(raw []byte, t reflect.Type, path string) {
	if raw[0] != '[' {
		c.mismatch(path, "an array", raw)
		return
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	_, _ = dec.Token()
	for i := 0; dec.More(); i++ {
		var value json.RawMessage
		_ = dec.Decode(&value)
		c.value(value, t.Elem(), IndexPath(path, i))
	}
}
