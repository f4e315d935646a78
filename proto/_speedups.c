/* The inner loops of a batch of records: read, stamp, queue entries, index entries, encode. Optional: speedups.py says
 * which code runs, and the Python code next to each caller does the same. Formats: record.py, store/format.
 *
 * All functions are pure: bytes in, bytes out, no state, no callback. `scan` reads bytes of peers. It returns None for
 * every batch that is not valid and standard; the Python code then finds what is wrong. Each length is compared with
 * the space that is left, by subtraction, so that nothing overflows. Columns of numbers are int64 in native order;
 * they are read with memcpy, because a buffer may begin at any address.
 */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { API = 1 };             /* The same number is in speedups.py. */
enum { HEAD = 88, LEAST = 92, SYS_FLAG_AT = 36, SHORT_MAX = 0x7FFF, HINTS_MAX = 16, KEYS_MAX = 1 << 20, ENTRY = 20, SLOT = 4, STAMP = 16 };
#define MAGIC_V1 0xDAA320A7u

typedef struct { const uint8_t *at; Py_ssize_t size; } Range;

/* CRC-32, eight bytes at a time. */
static uint32_t crc_table[8][256];

static void make_crc_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? 0xEDB88320u ^ (crc >> 1) : crc >> 1;
        crc_table[0][byte] = crc;
    }
    for (int byte = 0; byte < 256; byte++)
        for (int k = 1; k < 8; k++)
            crc_table[k][byte] = (crc_table[k - 1][byte] >> 8) ^ crc_table[0][crc_table[k - 1][byte] & 255];
}

static uint32_t stored_crc(const uint8_t *p, Py_ssize_t size)
{
    uint32_t crc = ~0u;
    for (; size >= 8; size -= 8, p += 8) {
        uint32_t low = crc ^ (p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        crc = crc_table[7][low & 255] ^ crc_table[6][low >> 8 & 255] ^ crc_table[5][low >> 16 & 255] ^
              crc_table[4][low >> 24] ^ crc_table[3][p[4]] ^ crc_table[2][p[5]] ^ crc_table[1][p[6]] ^
              crc_table[0][p[7]];
    }
    while (size-- > 0) crc = crc >> 8 ^ crc_table[0][(crc ^ *p++) & 255];
    return ~crc & 0x7FFFFFFFu;
}

/* Big-endian fields, and columns. */
static uint32_t get16(const uint8_t *p) { return (uint32_t)p[0] << 8 | p[1]; }
static uint32_t get32(const uint8_t *p) { return get16(p) << 16 | get16(p + 2); }
static void put16(uint8_t *p, uint32_t value) { p[0] = (uint8_t)(value >> 8), p[1] = (uint8_t)value; }
static void put32(uint8_t *p, uint32_t value) { put16(p, value >> 16), put16(p + 2, value); }
static void put64(uint8_t *p, uint64_t value) { put32(p, (uint32_t)(value >> 32)), put32(p + 4, (uint32_t)value); }

static int64_t cell(const void *column, Py_ssize_t row)
{
    int64_t value;
    memcpy(&value, (const char *)column + row * 8, 8);
    return value;
}

/* The Java hash of TEXT, UTF-8, continued from SEED. Returns 0 with an exception if memory is missing. */
static int java_hash(Range text, uint32_t seed, uint32_t *hash)
{
    uint32_t value = seed, high = 0;
    for (Py_ssize_t i = 0; i < text.size; i++) value = value * 31 + text.at[i], high |= text.at[i];
    if (high & 0x80) { /* Malformed UTF-8 becomes U+FFFD, as in Python: so Python decodes it. */
        PyObject *decoded = PyUnicode_DecodeUTF8((const char *)text.at, text.size, "replace");
        Py_ssize_t length = decoded ? PyUnicode_GetLength(decoded) : -1;
        if (length < 0) {
            Py_XDECREF(decoded);
            return 0;
        }
        value = seed;
        for (Py_ssize_t i = 0; i < length; i++) {
            Py_UCS4 unit = PyUnicode_ReadChar(decoded, i);
            if (unit > 0xFFFF) value = value * 31 + (0xD7C0 + (unit >> 10)), unit = 0xDC00 | (unit & 0x3FF);
            value = value * 31 + unit;
        }
        Py_DECREF(decoded);
    }
    *hash = value;
    return 1;
}

/* Keys found so far: their hashes in stored form, and the rows of their records. */
typedef struct { int64_t *hashes, *rows; Py_ssize_t count, room, most; } Keys;

/* Returns 1, 0 with an exception, or -1 if there are more keys than allowed. */
static int add_key(Keys *keys, Range text, uint32_t seed, Py_ssize_t row)
{
    uint32_t hash;
    if (keys->count == keys->most) return -1;
    if (keys->count == keys->room) {
        Py_ssize_t room = keys->room < keys->most / 2 ? keys->room * 2 : keys->most;
        int64_t *hashes = PyMem_Realloc(keys->hashes, (size_t)room * 8);
        if (hashes) keys->hashes = hashes;
        int64_t *rows = hashes ? PyMem_Realloc(keys->rows, (size_t)room * 8) : NULL;
        if (!rows) return PyErr_NoMemory(), 0;
        keys->rows = rows, keys->room = room;
    }
    if (!java_hash(text, seed, &hash)) return 0;
    if (hash >> 31) hash = 0u - hash; /* The absolute value; the smallest integer has none. */
    keys->hashes[keys->count] = hash >> 31 ? 0 : hash;
    keys->rows[keys->count++] = row;
    return 1;
}

typedef struct { Range unique, words, tags; int special; } Properties;

static int is(Range name, const char *wanted, Py_ssize_t size)
{
    return name.size == size && !memcmp(name.at, wanted, (size_t)size);
}

static int contains(Range name, Range hint)
{
    for (Py_ssize_t i = 0; i + hint.size <= name.size; i++)
        if (name.at[i] == hint.at[0] && !memcmp(name.at + i, hint.at, (size_t)hint.size)) return 1;
    return 0;
}

/* Of properties with the same name, the last one counts; one without a name or a value is none. */
static Properties read_properties(const uint8_t *p, const uint8_t *end, const Range *hints, Py_ssize_t hint_count)
{
    Properties found = {{NULL, 0}, {NULL, 0}, {NULL, 0}, 0};
    while (p < end) {
        const uint8_t *stop = memchr(p, 2, (size_t)(end - p));
        if (!stop) stop = end;
        const uint8_t *mark = stop > p ? memchr(p, 1, (size_t)(stop - p)) : NULL;
        if (mark && mark > p && mark + 1 < stop) {
            Range name = {p, mark - p}, value = {mark + 1, stop - mark - 1};
            if (is(name, "UNIQ_KEY", 8)) found.unique = value;
            else if (is(name, "KEYS", 4)) found.words = value;
            else if (is(name, "TAGS", 4)) found.tags = value;
            for (Py_ssize_t i = 0; i < hint_count && !found.special; i++) found.special = contains(name, hints[i]);
        }
        p = stop < end ? stop + 1 : end;
    }
    return found;
}

/* Returns as add_key does. */
static int add_words(Keys *keys, Range words, uint32_t seed, Py_ssize_t row)
{
    const uint8_t *p = words.at, *end = p + words.size;
    while (p < end) {
        const uint8_t *stop = memchr(p, ' ', (size_t)(end - p));
        if (!stop) stop = end;
        if (stop > p) {
            Range word = {p, stop - p};
            int added = add_key(keys, word, seed, row);
            if (added != 1) return added;
        }
        p = stop < end ? stop + 1 : end;
    }
    return 1;
}

static Py_ssize_t read_hints(PyObject *given, Range *hints)
{
    Py_ssize_t count = PyTuple_Size(given);
    if (count > HINTS_MAX) return PyErr_SetString(PyExc_ValueError, "too many hints"), -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        char *text;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(given, i), &text, &hints[i].size) < 0) return -1;
        if (!hints[i].size) return PyErr_SetString(PyExc_ValueError, "an empty hint"), -1;
        hints[i].at = (const uint8_t *)text;
    }
    return count;
}

typedef struct { Range topic; int queue; uint32_t unusual; int64_t body_max, record_max; } Wanted;

/* Returns the property string of the record of SIZE bytes at P if it is valid and as WANTED; else .at is NULL. */
static Range check_record(const uint8_t *p, Py_ssize_t size, const Wanted *wanted)
{
    const Range invalid = {NULL, 0};
    if (size > wanted->record_max || get32(p) != (uint64_t)size || get32(p + 4) != MAGIC_V1) return invalid;
    if (get32(p + 12) != (uint32_t)wanted->queue || get32(p + SYS_FLAG_AT) & wanted->unusual) return invalid;
    int64_t body_size = get32(p + HEAD - 4), rest = size - HEAD - wanted->topic.size - 2 - body_size;
    if (body_size < 1 || body_size > wanted->body_max || rest < 0 || rest > SHORT_MAX) return invalid;
    const uint8_t *topic = p + HEAD + body_size, *string = topic + wanted->topic.size + 2;
    if (memcmp(topic, wanted->topic.at, (size_t)wanted->topic.size) || get16(string - 2) != rest) return invalid;
    if (stored_crc(p + HEAD, (Py_ssize_t)body_size) != get32(p + 8)) return invalid;
    Range found = {string, (Py_ssize_t)rest};
    return found;
}

PyDoc_STRVAR(scan_doc,
"scan(data, sizes, (topic_field, queue, unusual, body_max, record_max), seeds, hints, keys_max)\n--\n\n"
"Return None, or (starts, sizes, least, most, hashes, rows, codes or None, special, string_at, string_size).");

static PyObject *scan(PyObject *module, PyObject *args)
{
    Py_buffer data, topic;
    PyObject *given_sizes, *given_hints, *listed = NULL, *starts = NULL, *sizes = NULL, *codes = NULL, *found = NULL;
    Wanted wanted;
    unsigned int unusual, plain, tagged;
    long long body_max, record_max;
    Keys keys = {NULL, NULL, 0, 0, 0};
    Range hints[HINTS_MAX], first = {NULL, 0};
    (void)module;
    if (!PyArg_ParseTuple(args, "y*O(y*iILL)(II)O!n", &data, &given_sizes, &topic, &wanted.queue, &unusual, &body_max,
                          &record_max, &plain, &tagged, &PyTuple_Type, &given_hints, &keys.most))
        return NULL;
    wanted.topic.at = topic.buf, wanted.topic.size = topic.len;
    wanted.unusual = unusual, wanted.body_max = body_max, wanted.record_max = record_max;
    Py_ssize_t hint_count = read_hints(given_hints, hints);
    Py_ssize_t count = hint_count < 0 ? -1 : PySequence_Size(given_sizes);
    if (count < 0) goto end;
    if (keys.most < 0 || keys.most > KEYS_MAX) {
        PyErr_SetString(PyExc_ValueError, "keys_max");
        goto end;
    }
    if (!count || count > data.len / LEAST || topic.len > 256) goto none;
    if (!(listed = PySequence_List(given_sizes))) goto end;
    count = PyList_Size(listed);
    if (!count || count > data.len / LEAST) goto none; /* Again: it is another object now. */
    starts = PyBytes_FromStringAndSize(NULL, count * 8);
    sizes = PyBytes_FromStringAndSize(NULL, count * 8);
    codes = PyBytes_FromStringAndSize(NULL, count * 8);
    keys.room = keys.most < 4 * count ? keys.most : 4 * count;
    keys.hashes = PyMem_Malloc((size_t)(keys.room > 0 ? keys.room : 1) * 8);
    keys.rows = PyMem_Malloc((size_t)(keys.room > 0 ? keys.room : 1) * 8);
    if (!starts || !sizes || !codes) goto end;
    if (!keys.hashes || !keys.rows) {
        PyErr_NoMemory();
        goto end;
    }
    int64_t *start_of = (int64_t *)PyBytes_AsString(starts), *size_of = (int64_t *)PyBytes_AsString(sizes);
    int64_t *code_of = (int64_t *)PyBytes_AsString(codes), least = INT64_MAX, most = 0;
    const uint8_t *begin = data.buf;
    Py_ssize_t at = 0;
    int any_code = 0, special = 0;
    for (Py_ssize_t row = 0; row < count; row++) {
        long long size = PyLong_AsLongLong(PyList_GetItem(listed, row));
        if (size == -1 && PyErr_Occurred()) {
            PyErr_Clear();
            goto none;
        }
        if (size < HEAD + topic.len + 2 || size > data.len - at) goto none;
        Range string = check_record(begin + at, (Py_ssize_t)size, &wanted);
        if (!string.at) goto none;
        Properties own = read_properties(string.at, string.at + string.size, hints, hint_count);
        int added = own.unique.at ? add_key(&keys, own.unique, plain, row) : 1;
        if (added == 1) added = add_words(&keys, own.words, plain, row);
        uint32_t code = 0;
        if (added == 1 && own.tags.at) {
            added = add_key(&keys, own.tags, tagged, row);
            if (added == 1 && !java_hash(own.tags, 0, &code)) added = 0;
            any_code = 1;
        }
        if (added < 0) goto none;
        if (!added) goto end;
        start_of[row] = at, size_of[row] = size, code_of[row] = (int32_t)code;
        if (size < least) least = size;
        if (size > most) most = size;
        if (!row) first = string;
        special |= own.special;
        at += (Py_ssize_t)size;
    }
    if (at != data.len) goto none;
    found = Py_BuildValue("(OOLLy#y#OOnn)", starts, sizes, (long long)least, (long long)most, (char *)keys.hashes,
                          keys.count * 8, (char *)keys.rows, keys.count * 8, any_code ? codes : Py_None,
                          special ? Py_True : Py_False, (Py_ssize_t)(first.at - begin), first.size);
    goto end;
none:
    found = Py_NewRef(Py_None);
end:
    PyMem_Free(keys.hashes);
    PyMem_Free(keys.rows);
    Py_XDECREF(starts);
    Py_XDECREF(sizes);
    Py_XDECREF(codes);
    Py_XDECREF(listed);
    PyBuffer_Release(&data);
    PyBuffer_Release(&topic);
    return found;
}

PyDoc_STRVAR(stamp_doc,
"stamp(view, starts, first, log_offset, stamped)\n--\n\n"
"Set queue offset, log offset, and STAMPED, 16 bytes, in the records at STARTS of VIEW.");

static PyObject *stamp(PyObject *module, PyObject *args)
{
    Py_buffer view, starts, stamped;
    long long first, log_offset;
    PyObject *done = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "w*y*LLy*", &view, &starts, &first, &log_offset, &stamped)) return NULL;
    Py_ssize_t count = starts.len / 8, row = 0;
    uint8_t *data = view.buf;
    if (stamped.len == STAMP && !(starts.len % 8))
        for (; row < count; row++) {
            int64_t start = cell(starts.buf, row);
            if (start < 0 || start > view.len - HEAD) break;
            put64(data + start + 20, (uint64_t)first + (uint64_t)row);
            put64(data + start + 28, (uint64_t)log_offset + (uint64_t)start);
            memmove(data + start + 56, stamped.buf, STAMP);
        }
    if (stamped.len != STAMP || starts.len % 8 || row < count)
        PyErr_SetString(PyExc_ValueError, "a record is outside the buffer, or STAMPED has not 16 bytes");
    else
        done = Py_NewRef(Py_None);
    PyBuffer_Release(&view);
    PyBuffer_Release(&starts);
    PyBuffer_Release(&stamped);
    return done;
}

PyDoc_STRVAR(entries_doc,
"queue_entries(starts, sizes, codes, log_offset)\n--\n\n"
"Return the entries of a consume queue for records at LOG_OFFSET + STARTS. CODES may be None: all are 0.");

static PyObject *queue_entries(PyObject *module, PyObject *args)
{
    Py_buffer starts, sizes, codes;
    long long log_offset;
    PyObject *made = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*z*L", &starts, &sizes, &codes, &log_offset)) return NULL;
    Py_ssize_t count = starts.len / 8;
    if (starts.len % 8 || sizes.len != starts.len || (codes.buf && codes.len != starts.len))
        PyErr_SetString(PyExc_ValueError, "columns of different lengths");
    else if (count > PY_SSIZE_T_MAX / ENTRY)
        PyErr_NoMemory();
    else if ((made = PyBytes_FromStringAndSize(NULL, count * ENTRY))) {
        uint8_t *p = (uint8_t *)PyBytes_AsString(made);
        for (Py_ssize_t row = 0; row < count; row++, p += ENTRY) {
            put64(p, (uint64_t)log_offset + (uint64_t)cell(starts.buf, row));
            put32(p + 8, (uint32_t)cell(sizes.buf, row));
            put64(p + 12, codes.buf ? (uint64_t)cell(codes.buf, row) : 0);
        }
    }
    PyBuffer_Release(&starts);
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&codes);
    return made;
}

PyDoc_STRVAR(index_doc,
"index_entries(file, (slots_at, slot_count), number, (hashes, rows), starts, log_offset, seconds)\n--\n\n"
"Enter keys into the bytes of an index file, from entry NUMBER on; return how many slots were empty.");

static PyObject *index_entries(PyObject *module, PyObject *args)
{
    Py_buffer file, hashes, rows, starts;
    long long slots_at, slot_count, number, log_offset;
    int seconds;
    PyObject *made = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "w*(LL)L(y*y*)y*Li", &file, &slots_at, &slot_count, &number, &hashes, &rows, &starts,
                          &log_offset, &seconds))
        return NULL;
    uint8_t *data = file.buf;
    Py_ssize_t count = hashes.len / 8, key_row = 0;
    long long fresh = 0, room = 0; /* Number of entries that the file has space for. */
    if (slots_at >= 0 && slots_at <= file.len && slot_count > 0 && slot_count <= (file.len - slots_at) / SLOT)
        room = (file.len - slots_at - slot_count * SLOT) / ENTRY;
    int sound = !(hashes.len % 8) && rows.len == hashes.len && number >= 0 && number <= room && count <= room - number;
    sound = sound && room <= INT32_MAX;
    for (; sound && key_row < count; key_row++) { /* Nothing is written unless all can be. */
        int64_t hash = cell(hashes.buf, key_row), row = cell(rows.buf, key_row);
        sound = hash >= 0 && hash <= INT32_MAX && row >= 0 && row < starts.len / 8;
    }
    if (!sound)
        PyErr_SetString(PyExc_ValueError, "keys that the index file has no space for, or of no record");
    else {
        for (key_row = 0; key_row < count; key_row++, number++) {
            int64_t hash = cell(hashes.buf, key_row), start = cell(starts.buf, (Py_ssize_t)cell(rows.buf, key_row));
            uint8_t *slot = data + slots_at + hash % slot_count * SLOT;
            uint8_t *entry = data + slots_at + slot_count * SLOT + number * ENTRY;
            uint32_t previous = get32(slot);
            if (!previous || previous > (uint64_t)number) previous = 0, fresh++;
            put32(slot, (uint32_t)number);
            put32(entry, (uint32_t)hash);
            put64(entry + 4, (uint64_t)log_offset + (uint64_t)start);
            put32(entry + 12, (uint32_t)seconds);
            put32(entry + 16, previous);
        }
        made = PyLong_FromLongLong(fresh);
    }
    PyBuffer_Release(&file);
    PyBuffer_Release(&hashes);
    PyBuffer_Release(&rows);
    PyBuffer_Release(&starts);
    return made;
}

/* The bytes of row ROW of COLUMN: a list of bytes objects, or one for all, or NULL for none. */
static int bytes_of(PyObject *column, Py_ssize_t row, Range *found)
{
    char *text = NULL;
    found->at = NULL, found->size = 0;
    if (!column) return 1;
    PyObject *one = PyList_Check(column) ? PyList_GetItem(column, row) : column;
    if (!one || PyBytes_AsStringAndSize(one, &text, &found->size) < 0) return 0;
    found->at = (const uint8_t *)text;
    return 1;
}

static uint8_t *put_bytes(uint8_t *p, const void *bytes, Py_ssize_t size)
{
    if (size) memcpy(p, bytes, (size_t)size);
    return p + size;
}

/* What all records share, and the columns of what they do not. */
typedef struct { Range head, topic, id; uint32_t id_first; Range extra; PyObject *bodies, *strings, *keys, *flags; } Batch;
typedef struct { Range body, string, key, extra; Py_ssize_t properties, size; } Parts;

/* Returns 1, 0 with an exception, or -1 if the record is not possible. */
static int measure(const Batch *batch, Py_ssize_t row, Parts *parts)
{
    const Range none = {NULL, 0};
    if (!bytes_of(batch->bodies, row, &parts->body) || !bytes_of(batch->strings, row, &parts->string)) return 0;
    if (!bytes_of(batch->keys, row, &parts->key)) return 0;
    parts->extra = row ? none : batch->extra;
    if (parts->body.size > INT32_MAX || parts->string.size > SHORT_MAX || parts->key.size > SHORT_MAX) return -1;
    parts->properties = 9 + batch->id.size + 8 + 1 + parts->extra.size + parts->string.size;
    if (batch->keys) parts->properties += 5 + parts->key.size + 1;
    int64_t size = (int64_t)batch->head.size + parts->body.size + batch->topic.size + 2 + parts->properties;
    if (parts->properties > SHORT_MAX || size > INT32_MAX) return -1;
    parts->size = (Py_ssize_t)size;
    return 1;
}

static uint8_t *put_record(uint8_t *p, const Batch *batch, Py_ssize_t row, const Parts *parts, uint32_t flag)
{
    uint32_t number = batch->id_first + (uint32_t)row;
    uint8_t *begin = p;
    p = put_bytes(p, batch->head.at, batch->head.size);
    put32(begin, (uint32_t)parts->size);
    put32(begin + 8, stored_crc(parts->body.at, parts->body.size));
    put32(begin + SYS_FLAG_AT, get32(begin + SYS_FLAG_AT) | flag);
    put32(p - 4, (uint32_t)parts->body.size);
    p = put_bytes(p, parts->body.at, parts->body.size);
    p = put_bytes(p, batch->topic.at, batch->topic.size);
    put16(p, (uint32_t)parts->properties);
    p = put_bytes(p + 2, "UNIQ_KEY\1", 9);
    p = put_bytes(p, batch->id.at, batch->id.size);
    for (int shift = 28; shift >= 0; shift -= 4) *p++ = (uint8_t)"0123456789ABCDEF"[number >> shift & 15];
    *p++ = 2;
    p = put_bytes(p, parts->extra.at, parts->extra.size);
    p = put_bytes(p, parts->string.at, parts->string.size);
    if (batch->keys) {
        p = put_bytes(p, "KEYS\1", 5);
        p = put_bytes(p, parts->key.at, parts->key.size);
        *p++ = 2;
    }
    return p;
}

PyDoc_STRVAR(encode_doc,
"encode((head, topic_field, id_head, id_first, first_extra), bodies, strings, keys, flags)\n--\n\n"
"Return (records, sizes); None if a length does not fit its field. STRINGS: one, or a list. KEYS, FLAGS: list or None.");

static PyObject *encode(PyObject *module, PyObject *args)
{
    Py_buffer head, topic, id, extra;
    Batch batch;
    Parts parts;
    unsigned int id_first;
    PyObject *records = NULL, *sizes = NULL, *found = NULL;
    Py_ssize_t total = 0;
    int good = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "(y*y*y*Iy*)O!OOO", &head, &topic, &id, &id_first, &extra, &PyList_Type, &batch.bodies,
                          &batch.strings, &batch.keys, &batch.flags))
        return NULL;
    batch.head.at = head.buf, batch.head.size = head.len, batch.topic.at = topic.buf, batch.topic.size = topic.len;
    batch.id.at = id.buf, batch.id.size = id.len, batch.id_first = id_first;
    batch.extra.at = extra.buf, batch.extra.size = extra.len;
    if (batch.keys == Py_None) batch.keys = NULL;
    if (batch.flags == Py_None) batch.flags = NULL;
    Py_ssize_t count = PyList_Size(batch.bodies);
    int fits = head.len >= HEAD && head.len <= 2 * HEAD && topic.len <= 2 + SHORT_MAX && id.len <= SHORT_MAX;
    fits = fits && extra.len <= SHORT_MAX && (!PyList_Check(batch.strings) || PyList_Size(batch.strings) == count);
    fits = fits && (!batch.keys || (PyList_Check(batch.keys) && PyList_Size(batch.keys) == count));
    fits = fits && (!batch.flags || (PyList_Check(batch.flags) && PyList_Size(batch.flags) == count));
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "columns of different lengths, or fields of impossible ones");
        goto end;
    }
    if (!(sizes = PyList_New(count))) goto end;
    for (Py_ssize_t row = 0; row < count; row++) {
        good = measure(&batch, row, &parts);
        if (good < 0 || (good && parts.size > PY_SSIZE_T_MAX - total)) goto none;
        PyObject *size = good ? PyLong_FromSsize_t(parts.size) : NULL;
        if (!size || PyList_SetItem(sizes, row, size) < 0) goto end;
        total += parts.size;
    }
    if (!(records = PyBytes_FromStringAndSize(NULL, total))) goto end;
    uint8_t *p = (uint8_t *)PyBytes_AsString(records);
    for (Py_ssize_t row = 0; row < count; row++) { /* Measured again: nothing proves that the lists are as before. */
        unsigned long flag = batch.flags ? PyLong_AsUnsignedLong(PyList_GetItem(batch.flags, row)) : 0;
        if (flag == (unsigned long)-1 && PyErr_Occurred()) goto end;
        good = measure(&batch, row, &parts);
        if (!good) goto end;
        if (good < 0 || parts.size > total) goto none;
        total -= parts.size;
        p = put_record(p, &batch, row, &parts, (uint32_t)flag);
    }
    if (total) goto none;
    found = PyTuple_Pack(2, records, sizes);
    goto end;
none:
    found = Py_NewRef(Py_None);
end:
    Py_XDECREF(records);
    Py_XDECREF(sizes);
    PyBuffer_Release(&head);
    PyBuffer_Release(&topic);
    PyBuffer_Release(&id);
    PyBuffer_Release(&extra);
    return found;
}

static PyMethodDef methods[] = {
    {"scan", scan, METH_VARARGS, scan_doc},
    {"stamp", stamp, METH_VARARGS, stamp_doc},
    {"queue_entries", queue_entries, METH_VARARGS, entries_doc},
    {"index_entries", index_entries, METH_VARARGS, index_doc},
    {"encode", encode, METH_VARARGS, encode_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_speedups", "The inner loops of a batch of records, in C.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__speedups(void)
{
    make_crc_table();
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "API", API) < 0) Py_CLEAR(module);
    return module;
}
