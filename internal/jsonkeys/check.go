package jsonkeys

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
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
	dec.Token() // the brace: the syntax is known to be right here and below
	for dec.More() {
		token, _ := dec.Token()
		key, _ := token.(string)
		var value json.RawMessage
		dec.Decode(&value)
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
	dec.Token()
	for i := 0; dec.More(); i++ {
		var value json.RawMessage
		dec.Decode(&value)
		c.value(value, t.Elem(), IndexPath(path, i))
	}
}

func (c *checker) scalar(raw []byte, t reflect.Type, path string) {
	switch t.Kind() {
	case reflect.Bool:
		if raw[0] != 't' && raw[0] != 'f' {
			c.mismatch(path, "true or false", raw)
		}
	case reflect.String:
		if t == reflect.TypeFor[json.Number]() {
			c.decode(raw, t, path)
		} else if raw[0] != '"' {
			c.mismatch(path, "a string", raw)
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		_, err := strconv.ParseInt(string(raw), 10, t.Bits())
		c.whole(raw, err, fmt.Sprintf("%d to %d", -1<<(t.Bits()-1), 1<<(t.Bits()-1)-1), path)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		_, err := strconv.ParseUint(string(raw), 10, t.Bits())
		if _, below := strconv.ParseInt(string(raw), 10, 64); below == nil && raw[0] == '-' && err != nil {
			err = strconv.ErrRange
		}
		c.whole(raw, err, fmt.Sprintf("0 to %d", ^uint64(0)>>(64-t.Bits())), path)
	case reflect.Float32, reflect.Float64:
		if !number(raw) {
			c.mismatch(path, "a number", raw)
		} else if _, err := strconv.ParseFloat(string(raw), t.Bits()); err != nil {
			c.fault(path, "want a number that fits %d bits, got %s", t.Bits(), raw)
		}
	default:
		c.decode(raw, t, path)
	}
}

// whole reports a whole number that could not be parsed.
func (c *checker) whole(raw []byte, err error, limits, path string) {
	switch {
	case err == nil:
	case number(raw) && errors.Is(err, strconv.ErrRange):
		c.fault(path, "want %s, got %s", limits, raw)
	default:
		c.mismatch(path, "a whole number", raw)
	}
}

func number(raw []byte) bool { return raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9' }

// decode lets the type itself say what it takes.
func (c *checker) decode(raw []byte, t reflect.Type, path string) {
	if err := json.Unmarshal(raw, reflect.New(t).Interface()); err != nil {
		c.fault(path, "%v", err)
	}
}

// mismatch reports a value of the wrong type. Long ones are cut: a fault is a line.
func (c *checker) mismatch(path, want string, raw []byte) {
	got := ""
	switch {
	case raw[0] == '{':
		got = "an object"
	case raw[0] == '[':
		got = "an array"
	case raw[0] == '"':
		var s string
		json.Unmarshal(raw, &s)
		if r := []rune(s); len(r) > 40 {
			s = string(r[:40]) + "…"
		}
		got = "string " + strconv.Quote(s)
	case number(raw):
		got = "number " + string(raw[:min(len(raw), 40)])
	default:
		got = string(raw)
	}
	c.fault(path, "want %s, got %s", want, got)
}

// field finds the type of the field of a struct that a key is decoded into.
func field(t reflect.Type, key string) (found reflect.StructField, ok bool) {
	eachKey(t, func(name string, f reflect.StructField) {
		if name == key && !ok {
			found, ok = f, true
		}
	})
	return found, ok
}

// Keys are the keys that a struct type is decoded from, in the order of its fields.
func Keys(t reflect.Type) []string {
	var keys []string
	eachKey(t, func(name string, _ reflect.StructField) {
		if !slices.Contains(keys, name) { // one of an embedded struct that is shadowed
			keys = append(keys, name)
		}
	})
	return keys
}

// eachKey calls fn with each key of a struct type, those of embedded structs after its own, as encoding/json prefers them.
func eachKey(t reflect.Type, fn func(name string, f reflect.StructField)) {
	var embedded []reflect.Type
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		inner := f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		switch {
		case f.Tag.Get("json") == "-":
		case f.Anonymous && name == "" && inner.Kind() == reflect.Struct:
			embedded = append(embedded, inner)
		case !f.IsExported():
		case name == "":
			fn(f.Name, f)
		default:
			fn(name, f)
		}
	}
	for _, inner := range embedded {
		eachKey(inner, fn)
	}
}
