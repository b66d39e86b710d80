// Times ggml's MUL_MAT on one backend: y[M,N] = x[M,K] * W[N,K]^T, x and y in f32, W in a ggml type; and its MUL_MAT_ID, the same
// with a matrix for each expert and a list of experts for each token.
//
// One ggml graph holds one MUL_MAT a node; the nodes go round the copies of W, which together exceed the L2 many
// times, so each node reads its weights from memory. The graph is run several times back to back without a wait
// (the CUDA backend replays it as a CUDA graph after two calls), so gaps of the host are hidden. The time of a node is
// all that ggml does for it: for quantised types that includes its kernel that turns x into q8_1.
// Each case is checked against f64 sums over the dequantised weights. One JSON object a line.

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

struct Shape {
    int64_t n;
    int64_t k;
};

// A layer of experts.
struct Stack {
    const char * model;
    int64_t      experts;
    int64_t      top_k;
    int64_t      hidden;
    int64_t      inner;
};

constexpr Stack STACKS[] = { { "Qwen3.6-35B-A3B", 256, 8, 2048, 512 }, { "Laguna-S-2.1", 256, 10, 3072, 1024 } };

// Which product of a layer: the gate's (the up's is the same), both with the activation after them, or the down's.
enum class Matrix { gate, gate_up, down };

struct Options {
    std::string        op         = "all";
    std::string        expert_types = "nvfp4,mxfp4,q4_K";
    std::vector<int>   expert_ms  = { 1, 2, 4, 8, 16, 32, 64 };
    std::string        backend    = "cuda";
    std::string        out        = "";
    std::string        types      = "q8_0,q6_K,q5_K,q4_K,q3_K,q2_K,q4_0,iq4_xs,iq4_nl,nvfp4,mxfp4,f16";
    std::vector<Shape> shapes     = { { 17408, 5120 }, { 5120, 17408 }, { 2048, 5120 }, { 14336, 4096 } };
    std::vector<int>   ms         = { 1, 2, 4, 8, 16, 32 };
    int64_t            rotate_mib = 512;
    int                min_nodes  = 32;
    int                runs       = 9;
    double             run_ms     = 10.0;
    double             warm_ms    = 600.0;
};

// Rows that are really random; the N rows of W repeat them. A prime, so that no tile size divides it.
constexpr int64_t ROWS_DISTINCT = 61;
// The bound that ggml's own tests set for MUL_MAT with activations in q8_1.
constexpr double NMSE_MAX = 5e-4;

struct Weights {
    ggml_type            type;
    Shape                shape;
    std::vector<float>   dequantised;  // [ROWS_DISTINCT, K]
    ggml_context *       ctx    = nullptr;
    ggml_backend_buffer_t buffer = nullptr;
    std::vector<ggml_tensor *> copies;  // each [N, K]
};

struct Timing {
    std::vector<double> us;  // per node, sorted
    int                 repeats;
};

int cuda_graphs_captured = 0;

void on_log(ggml_log_level level, const char * text, void *) {
    if (std::strstr(text, "CUDA graph warmup complete") != nullptr) {
        cuda_graphs_captured++;
    }
    if (level != GGML_LOG_LEVEL_DEBUG) {
        std::fputs(text, stderr);
    }
}

[[noreturn]] void die(const std::string & message) {
    std::fprintf(stderr, "bench: %s\n", message.c_str());
    std::exit(2);
}

std::vector<std::string> split(const std::string & text, char by) {
    std::vector<std::string> parts;
    size_t from = 0;
    while (from <= text.size()) {
        const size_t to = std::min(text.find(by, from), text.size());
        if (to > from) {
            parts.push_back(text.substr(from, to - from));
        }
        from = to + 1;
    }
    return parts;
}

Options parse(int argc, char ** argv) {
    Options o;
    for (int i = 1; i < argc; i += 2) {
        const std::string flag = argv[i];
        if (i + 1 >= argc) {
            die(flag + " wants a value");
        }
        const std::string value = argv[i + 1];
        if (flag == "--backend") {
            o.backend = value;
        } else if (flag == "--out") {
            o.out = value;
        } else if (flag == "--op") {
            o.op = value;
        } else if (flag == "--expert-types") {
            o.expert_types = value;
        } else if (flag == "--expert-m") {
            o.expert_ms.clear();
            for (const auto & m : split(value, ',')) {
                o.expert_ms.push_back(std::atoi(m.c_str()));
            }
        } else if (flag == "--types") {
            o.types = value;
        } else if (flag == "--rotate-mib") {
            o.rotate_mib = std::atoll(value.c_str());
        } else if (flag == "--min-nodes") {
            o.min_nodes = std::atoi(value.c_str());
        } else if (flag == "--runs") {
            o.runs = std::max(1, std::atoi(value.c_str()));
        } else if (flag == "--run-ms") {
            o.run_ms = std::atof(value.c_str());
        } else if (flag == "--warm-ms") {
            o.warm_ms = std::atof(value.c_str());
        } else if (flag == "--m") {
            o.ms.clear();
            for (const auto & m : split(value, ',')) {
                o.ms.push_back(std::atoi(m.c_str()));
            }
        } else if (flag == "--shapes") {  // NxK,NxK
            o.shapes.clear();
            for (const auto & pair : split(value, ',')) {
                const auto nk = split(pair, 'x');
                if (nk.size() != 2) {
                    die("--shapes wants NxK, not " + pair);
                }
                o.shapes.push_back({ std::atoll(nk[0].c_str()), std::atoll(nk[1].c_str()) });
            }
        } else {
            die("unknown flag " + flag);
        }
    }
    return o;
}

ggml_type type_by_name(const std::string & name) {
    for (int t = 0; t < GGML_TYPE_COUNT; t++) {
        const char * known = ggml_type_name(ggml_type(t));
        if (known != nullptr && name == known) {
            return ggml_type(t);
        }
    }
    return GGML_TYPE_COUNT;
}

ggml_context * new_context(size_t tensors, size_t nodes) {
    // Contexts are never freed: the CUDA backend keys its captured graphs by the address of a graph's first node.
    ggml_init_params params = {};
    params.mem_size = ggml_tensor_overhead() * (tensors + 8) + (nodes > 0 ? ggml_graph_overhead_custom(nodes, false) : 0);
    params.no_alloc = true;
    return ggml_init(params);
}

std::vector<float> normal(size_t count, uint32_t seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> draw(0.0f, 1.0f);
    std::vector<float> values(count);
    for (float & v : values) {
        v = draw(generator);
    }
    return values;
}

// Makes all copies of W on the backend. False where they do not fit.
bool upload(ggml_backend_t backend, const Options & o, Weights & w) {
    const int64_t n = w.shape.n;
    const int64_t k = w.shape.k;
    const size_t  row_bytes = ggml_row_size(w.type, k);
    const int64_t distinct  = std::min(n, ROWS_DISTINCT);

    const std::vector<float> source = normal(size_t(distinct * k), 7);
    std::vector<uint8_t> blocks(row_bytes * size_t(distinct));
    ggml_quantize_chunk(w.type, source.data(), blocks.data(), 0, distinct, k, nullptr);
    w.dequantised.resize(size_t(distinct * k));
    for (int64_t r = 0; r < distinct; r++) {
        ggml_get_type_traits(w.type)->to_float(blocks.data() + size_t(r) * row_bytes, w.dequantised.data() + r * k, k);
    }

    const int64_t bytes  = int64_t(row_bytes) * n;
    const int64_t copies = std::max<int64_t>(4, ((o.rotate_mib << 20) + bytes - 1) / bytes);
    w.ctx = new_context(size_t(copies), 0);
    for (int64_t c = 0; c < copies; c++) {
        w.copies.push_back(ggml_new_tensor_2d(w.ctx, w.type, k, n));
    }
    w.buffer = ggml_backend_alloc_ctx_tensors(w.ctx, backend);
    if (w.buffer == nullptr) {
        return false;
    }
    ggml_backend_buffer_set_usage(w.buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);

    std::vector<uint8_t> whole(static_cast<size_t>(bytes));
    for (int64_t r = 0; r < n; r++) {
        std::memcpy(whole.data() + size_t(r) * row_bytes, blocks.data() + size_t(r % distinct) * row_bytes, row_bytes);
    }
    ggml_backend_tensor_set(w.copies[0], whole.data(), 0, whole.size());
    for (size_t c = 1; c < w.copies.size(); c++) {
        ggml_backend_tensor_copy(w.copies[0], w.copies[c]);
    }
    ggml_backend_synchronize(backend);
    return true;
}

// Normalised mean square error of y [M,N] against f64 sums.
double nmse(const Weights & w, const std::vector<float> & x, const std::vector<float> & y, int m_count) {
    const int64_t n = w.shape.n;
    const int64_t k = w.shape.k;
    const int64_t distinct = std::min(n, ROWS_DISTINCT);
    double error = 0.0;
    double norm  = 0.0;
    for (int m = 0; m < m_count; m++) {
        std::vector<double> want(static_cast<size_t>(distinct));
        for (int64_t r = 0; r < distinct; r++) {
            double sum = 0.0;
            for (int64_t i = 0; i < k; i++) {
                sum += double(w.dequantised[size_t(r * k + i)]) * double(x[size_t(m * k + i)]);
            }
            want[size_t(r)] = sum;
        }
        for (int64_t r = 0; r < n; r++) {
            const double wanted = want[size_t(r % distinct)];
            const double off    = double(y[size_t(m * n + r)]) - wanted;
            error += off * off;
            norm += wanted * wanted;
        }
    }
    return error / norm;
}

double run_once_us(ggml_backend_t backend, ggml_cgraph * graph, int repeats) {
    const auto start = std::chrono::steady_clock::now();
    for (int r = 0; r < repeats; r++) {
        if (ggml_backend_graph_compute_async(backend, graph) != GGML_STATUS_SUCCESS) {
            die("graph_compute failed");
        }
    }
    ggml_backend_synchronize(backend);
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

Timing measure(ggml_backend_t backend, ggml_cgraph * graph, int nodes, const Options & o) {
    static double warm_us = o.warm_ms * 1000.0;  // the first case also wakes the clocks
    double spent_us = 0.0;
    for (int i = 0; i < 3 || spent_us < warm_us; i++) {  // plain, captured, replayed
        spent_us += run_once_us(backend, graph, 1);
    }
    warm_us = std::min(warm_us, 2.0 * o.run_ms * 1000.0);
    const double one_us = std::max(1.0, run_once_us(backend, graph, 2) / 2.0);
    Timing t;
    t.repeats = std::max(1, int(std::ceil(o.run_ms * 1000.0 / one_us)));
    for (int i = 0; i < o.runs; i++) {
        t.us.push_back(run_once_us(backend, graph, t.repeats) / (double(t.repeats) * nodes));
    }
    std::sort(t.us.begin(), t.us.end());
    return t;
}

// One M. Returns false when the numbers are wrong.
bool run_case(ggml_backend_t backend, const Options & o, const Weights & w, int m, const std::string & device, FILE * out) {
    const int64_t n = w.shape.n;
    const int64_t k = w.shape.k;
    const int copies = int(w.copies.size());
    const int nodes  = copies * std::max(1, (o.min_nodes + copies - 1) / copies);

    const size_t   graph_size = size_t(nodes) + size_t(copies) + 8;  // it bounds the leafs (weights and x) too
    ggml_context * ctx = new_context(size_t(nodes) + 1, graph_size);
    ggml_tensor *  xt  = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, k, m);
    ggml_cgraph *  graph = ggml_new_graph_custom(ctx, graph_size, false);
    std::vector<ggml_tensor *> ys;
    for (int i = 0; i < nodes; i++) {
        ys.push_back(ggml_mul_mat(ctx, w.copies[size_t(i % copies)], xt));
        ggml_build_forward_expand(graph, ys.back());
    }
    const std::string head = std::string("{\"peer\":\"llama.cpp ggml\",\"backend\":\"") + o.backend + "\",\"device\":\"" +
        device + "\",\"ggml\":\"" + ggml_version() + "\",\"op\":\"MUL_MAT\",\"type\":\"" + ggml_type_name(w.type) + "\",\"n\":" +
        std::to_string(n) + ",\"k\":" + std::to_string(k) + ",\"m\":" + std::to_string(m);
    if (!ggml_backend_supports_op(backend, ys[0])) {
        std::fprintf(out, "%s,\"skipped\":\"the backend has no such MUL_MAT\"}\n", head.c_str());
        return true;
    }
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
    if (buffer == nullptr) {
        std::fprintf(out, "%s,\"skipped\":\"out of memory\"}\n", head.c_str());
        return true;
    }
    ggml_backend_buffer_clear(buffer, 0xff);  // NaN, so that a result left out is seen
    const std::vector<float> x = normal(size_t(m) * size_t(k), 11);
    ggml_backend_tensor_set(xt, x.data(), 0, x.size() * sizeof(float));

    const int captured_before = cuda_graphs_captured;
    const Timing t = measure(backend, graph, nodes, o);
    const bool captured = cuda_graphs_captured > captured_before;

    double worst = 0.0;
    std::vector<float> y(size_t(m) * size_t(n));
    for (ggml_tensor * probe : { ys.front(), ys.back() }) {
        ggml_backend_tensor_get(probe, y.data(), 0, y.size() * sizeof(float));
        const double off = nmse(w, x, y, m);
        worst = std::isfinite(off) ? std::max(worst, off) : 1e30;
    }
    ggml_backend_buffer_free(buffer);

    const double us    = t.us[t.us.size() / 2];
    const double bytes = double(ggml_nbytes(w.copies[0]));
    const bool   ok    = worst <= NMSE_MAX;
    std::fprintf(out,
                 "%s,\"us\":%.3f,\"us_min\":%.3f,\"us_max\":%.3f,\"weight_bytes\":%.0f,\"gb_s\":%.1f,\"runs\":%zu,"
                 "\"repeats\":%d,\"nodes\":%d,\"copies\":%d,\"cuda_graph\":%s,\"nmse\":%.3e,\"ok\":%s}\n",
                 head.c_str(), us, t.us.front(), t.us.back(), bytes, bytes / us / 1e3, t.us.size(), t.repeats, nodes,
                 copies, captured ? "true" : "false", worst, ok ? "true" : "false");
    std::fflush(out);
    return ok;
}

// Experts of one matrix. Row r of expert e is the distinct row (r + 7 e) % ROWS_DISTINCT, so that a wrong expert shows.
int64_t row_of(int64_t expert, int64_t row) {
    return (row + 7 * expert) % ROWS_DISTINCT;
}

struct Experts {
    Weights              weights;  // each copy [experts, n, k]; dequantised [ROWS_DISTINCT, k]
    int64_t              n;
    int64_t              k;
};

// Makes `copies` of an expert matrix. False where they do not fit.
bool upload_experts(ggml_backend_t backend, int64_t count, int64_t copies, Experts & e) {
    Weights & w = e.weights;
    const size_t row_bytes = ggml_row_size(w.type, e.k);
    const std::vector<float> source = normal(size_t(ROWS_DISTINCT * e.k), 7);
    std::vector<uint8_t> blocks(row_bytes * size_t(ROWS_DISTINCT));
    ggml_quantize_chunk(w.type, source.data(), blocks.data(), 0, ROWS_DISTINCT, e.k, nullptr);
    w.dequantised.resize(size_t(ROWS_DISTINCT * e.k));
    for (int64_t r = 0; r < ROWS_DISTINCT; r++) {
        ggml_get_type_traits(w.type)->to_float(blocks.data() + size_t(r) * row_bytes, w.dequantised.data() + r * e.k, e.k);
    }
    w.ctx = new_context(size_t(copies), 0);
    for (int64_t c = 0; c < copies; c++) {
        w.copies.push_back(ggml_new_tensor_3d(w.ctx, w.type, e.k, e.n, count));
    }
    w.buffer = ggml_backend_alloc_ctx_tensors(w.ctx, backend);
    if (w.buffer == nullptr) {
        return false;
    }
    ggml_backend_buffer_set_usage(w.buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    std::vector<uint8_t> one(row_bytes * size_t(e.n));
    for (int64_t x = 0; x < count; x++) {
        for (int64_t r = 0; r < e.n; r++) {
            std::memcpy(one.data() + size_t(r) * row_bytes, blocks.data() + size_t(row_of(x, r)) * row_bytes, row_bytes);
        }
        ggml_backend_tensor_set(w.copies[0], one.data(), size_t(x) * one.size(), one.size());
    }
    for (size_t c = 1; c < w.copies.size(); c++) {
        ggml_backend_tensor_copy(w.copies[0], w.copies[c]);
    }
    ggml_backend_synchronize(backend);
    return true;
}

// top_k different experts a token, [m][top_k]; counts how many different ones there are in all.
std::vector<int32_t> choose(const Stack & stack, int m, uint32_t seed, int64_t & touched) {
    std::mt19937 generator(seed);
    std::vector<int32_t> all(static_cast<size_t>(stack.experts));
    std::vector<int32_t> ids;
    std::vector<bool>    used(all.size(), false);
    for (size_t i = 0; i < all.size(); i++) {
        all[i] = int32_t(i);
    }
    for (int t = 0; t < m; t++) {
        for (int64_t r = 0; r < stack.top_k; r++) {
            std::uniform_int_distribution<size_t> draw(size_t(r), all.size() - 1);
            std::swap(all[size_t(r)], all[draw(generator)]);
            ids.push_back(all[size_t(r)]);
            used[size_t(all[size_t(r)])] = true;
        }
    }
    touched += std::count(used.begin(), used.end(), true);
    return ids;
}

// Normalised mean square error of y [m][top_k][n]. x has x_rows rows a token: one, or one for each choice.
double nmse_experts(const Experts & e, Matrix matrix, const std::vector<int32_t> & ids, int64_t top_k, int64_t x_rows,
                    const std::vector<float> & x, const std::vector<float> & y) {
    double error = 0.0;
    double norm  = 0.0;
    for (size_t slot = 0; slot < ids.size(); slot++) {
        const size_t at = x_rows == 1 ? slot / size_t(top_k) : slot;
        double want[ROWS_DISTINCT];
        for (int64_t r = 0; r < ROWS_DISTINCT; r++) {
            double sum = 0.0;
            for (int64_t i = 0; i < e.k; i++) {
                sum += double(e.weights.dequantised[size_t(r * e.k + i)]) * double(x[at * size_t(e.k) + size_t(i)]);
            }
            // Gate and up are one matrix here: silu(s) s.
            want[r] = matrix == Matrix::gate_up ? sum / (1.0 + std::exp(-sum)) * sum : sum;
        }
        for (int64_t r = 0; r < e.n; r++) {
            const double wanted = want[row_of(ids[slot], r)];
            const double off    = double(y[slot * size_t(e.n) + size_t(r)]) - wanted;
            error += off * off;
            norm += wanted * wanted;
        }
    }
    return error / norm;
}

// One product and one number of tokens. Returns false when the numbers are wrong.
bool run_experts(ggml_backend_t backend, const Options & o, const Stack & stack, Matrix matrix, const Experts & e, int m,
                 const std::string & device, FILE * out) {
    const std::vector<ggml_tensor *> & weights = e.weights.copies;
    const int     copies = int(weights.size());
    const int     reads  = matrix == Matrix::gate_up ? 2 : 1;
    const int     nodes  = copies * std::max(1, (o.min_nodes + copies - 1) / copies);
    const int64_t x_rows = matrix == Matrix::down ? stack.top_k : 1;

    const size_t   graph_size = size_t(nodes) * 4 + size_t(copies) + 8;
    ggml_context * ctx = new_context(size_t(nodes) * 4 + 1, graph_size);
    ggml_tensor *  xt  = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, e.k, x_rows, m);
    ggml_cgraph *  graph = ggml_new_graph_custom(ctx, graph_size, false);
    std::vector<ggml_tensor *> ids;
    std::vector<ggml_tensor *> ys;
    for (int i = 0; i < nodes; i++) {
        ids.push_back(ggml_new_tensor_2d(ctx, GGML_TYPE_I32, stack.top_k, m));
        // The up's matrix is the copy after the gate's.
        ggml_tensor * y = ggml_mul_mat_id(ctx, weights[size_t(i * reads % copies)], xt, ids.back());
        if (matrix == Matrix::gate_up) {
            ggml_tensor * up = ggml_mul_mat_id(ctx, weights[size_t((i * reads + 1) % copies)], xt, ids.back());
            y = ggml_swiglu_split(ctx, y, up);
        }
        ys.push_back(y);
        ggml_build_forward_expand(graph, y);
    }
    const char * names[] = { "gate", "gate_up", "down" };
    const std::string head = std::string("{\"peer\":\"llama.cpp ggml\",\"backend\":\"") + o.backend + "\",\"device\":\"" +
        device + "\",\"ggml\":\"" + ggml_version() + "\",\"op\":\"MUL_MAT_ID\",\"model\":\"" + stack.model +
        "\",\"matrix\":\"" + names[int(matrix)] + "\",\"type\":\"" + ggml_type_name(e.weights.type) + "\",\"experts\":" +
        std::to_string(stack.experts) + ",\"top_k\":" + std::to_string(stack.top_k) + ",\"n\":" + std::to_string(e.n) +
        ",\"k\":" + std::to_string(e.k) + ",\"m\":" + std::to_string(m);
    const ggml_tensor * product = matrix == Matrix::gate_up ? ys[0]->src[0] : ys[0];
    if (!ggml_backend_supports_op(backend, product) || !ggml_backend_supports_op(backend, ys[0])) {
        std::fprintf(out, "%s,\"skipped\":\"the backend has no such MUL_MAT_ID\"}\n", head.c_str());
        return true;
    }
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
    if (buffer == nullptr) {
        std::fprintf(out, "%s,\"skipped\":\"out of memory\"}\n", head.c_str());
        return true;
    }
    ggml_backend_buffer_clear(buffer, 0xff);  // NaN, so that a result left out is seen
    const std::vector<float> x = normal(size_t(m) * size_t(x_rows * e.k), 11);
    ggml_backend_tensor_set(xt, x.data(), 0, x.size() * sizeof(float));
    std::vector<std::vector<int32_t>> chosen;
    int64_t touched = 0;
    for (int i = 0; i < nodes; i++) {
        chosen.push_back(choose(stack, m, uint32_t(100 + i), touched));
        ggml_backend_tensor_set(ids[size_t(i)], chosen.back().data(), 0, chosen.back().size() * sizeof(int32_t));
    }

    const int captured_before = cuda_graphs_captured;
    const Timing t = measure(backend, graph, nodes, o);
    const bool captured = cuda_graphs_captured > captured_before;

    double worst = 0.0;
    std::vector<float> y(size_t(m) * size_t(stack.top_k * e.n));
    for (const size_t probe : { size_t(0), size_t(nodes - 1) }) {
        ggml_backend_tensor_get(ys[probe], y.data(), 0, y.size() * sizeof(float));
        const double off = nmse_experts(e, matrix, chosen[probe], stack.top_k, x_rows, x, y);
        worst = std::isfinite(off) ? std::max(worst, off) : 1e30;
    }
    ggml_backend_buffer_free(buffer);

    const double us     = t.us[t.us.size() / 2];
    const double mean   = double(touched) / nodes;
    const double bytes  = mean * reads * double(ggml_row_size(e.weights.type, e.k)) * double(e.n);
    // A product of two sums is off by twice as much, in squares four times.
    const bool   ok     = worst <= NMSE_MAX * (matrix == Matrix::gate_up ? 4.0 : 1.0);
    std::fprintf(out,
                 "%s,\"experts_touched\":%.1f,\"us\":%.3f,\"us_min\":%.3f,\"us_max\":%.3f,\"weight_bytes\":%.0f,\"gb_s\":%.1f,"
                 "\"runs\":%zu,\"repeats\":%d,\"nodes\":%d,\"copies\":%d,\"cuda_graph\":%s,\"nmse\":%.3e,\"ok\":%s}\n",
                 head.c_str(), mean, us, t.us.front(), t.us.back(), bytes, bytes / us / 1e3, t.us.size(), t.repeats, nodes,
                 copies, captured ? "true" : "false", worst, ok ? "true" : "false");
    std::fflush(out);
    return ok;
}

// All products of one layer in one type. Returns how many cases were wrong.
int run_stack(ggml_backend_t backend, const Options & o, const Stack & stack, ggml_type type, const std::string & device, FILE * out) {
    int wrong = 0;
    for (const bool down : { false, true }) {
        Experts e;
        e.weights.type = type;
        e.n = down ? stack.hidden : stack.inner;
        e.k = down ? stack.inner : stack.hidden;
        if (e.k % ggml_blck_size(type) != 0) {
            die(std::string("widths of experts are not multiples of the block of ") + ggml_type_name(type));
        }
        const int64_t bytes  = int64_t(ggml_row_size(type, e.k)) * e.n * stack.experts;
        const int64_t copies = std::max<int64_t>(2, ((o.rotate_mib << 20) + bytes - 1) / bytes);
        if (!upload_experts(backend, stack.experts, copies + copies % 2, e)) {
            std::fprintf(out, "{\"peer\":\"llama.cpp ggml\",\"op\":\"MUL_MAT_ID\",\"model\":\"%s\",\"type\":\"%s\",\"skipped\":\"out of memory\"}\n",
                         stack.model, ggml_type_name(type));
            continue;
        }
        for (const Matrix matrix : { Matrix::gate, Matrix::gate_up, Matrix::down }) {
            if ((matrix == Matrix::down) != down) {
                continue;
            }
            for (const int m : o.expert_ms) {
                wrong += run_experts(backend, o, stack, matrix, e, m, device, out) ? 0 : 1;
            }
        }
        ggml_backend_buffer_free(e.weights.buffer);
    }
    return wrong;
}

}  // namespace

int main(int argc, char ** argv) {
    const Options o = parse(argc, argv);
    ggml_log_set(on_log, nullptr);
    if (o.backend != "cuda" && o.backend != "cpu") {
        die("--backend is cuda or cpu, not " + o.backend);
    }
    const auto kind = o.backend == "cuda" ? GGML_BACKEND_DEVICE_TYPE_GPU : GGML_BACKEND_DEVICE_TYPE_CPU;
    ggml_backend_t backend = ggml_backend_init_by_type(kind, nullptr);
    if (backend == nullptr) {
        die("no device for backend " + o.backend);
    }
    const std::string device = ggml_backend_dev_description(ggml_backend_get_device(backend));
    FILE * out = o.out.empty() ? stdout : std::fopen(o.out.c_str(), "w");
    if (out == nullptr) {
        die("cannot write " + o.out);
    }

    if (o.op != "all" && o.op != "mul_mat" && o.op != "mul_mat_id") {
        die("--op is all, mul_mat or mul_mat_id, not " + o.op);
    }

    int wrong = 0;
    for (const auto & name : split(o.op == "mul_mat_id" ? "" : o.types, ',')) {
        const ggml_type type = type_by_name(name);
        if (type == GGML_TYPE_COUNT) {
            std::fprintf(out, "{\"peer\":\"llama.cpp ggml\",\"type\":\"%s\",\"skipped\":\"unknown to this ggml\"}\n", name.c_str());
            continue;
        }
        for (const Shape & shape : o.shapes) {
            if (shape.n < 1 || shape.k < 1 || shape.k % ggml_blck_size(type) != 0) {
                die("K is not a multiple of the block of " + name);
            }
            Weights w;
            w.type  = type;
            w.shape = shape;
            if (!upload(backend, o, w)) {
                std::fprintf(out, "{\"peer\":\"llama.cpp ggml\",\"type\":\"%s\",\"n\":%lld,\"k\":%lld,\"skipped\":\"out of memory\"}\n",
                             name.c_str(), (long long) shape.n, (long long) shape.k);
                continue;
            }
            for (const int m : o.ms) {
                wrong += run_case(backend, o, w, m, device, out) ? 0 : 1;
            }
            ggml_backend_buffer_free(w.buffer);
        }
        std::fprintf(stderr, "bench: %s done\n", name.c_str());
    }
    for (const auto & name : split(o.op == "mul_mat" ? "" : o.expert_types, ',')) {
        const ggml_type type = type_by_name(name);
        if (type == GGML_TYPE_COUNT) {
            std::fprintf(out, "{\"peer\":\"llama.cpp ggml\",\"op\":\"MUL_MAT_ID\",\"type\":\"%s\",\"skipped\":\"unknown to this ggml\"}\n", name.c_str());
            continue;
        }
        for (const Stack & stack : STACKS) {
            wrong += run_stack(backend, o, stack, type, device, out);
        }
        std::fprintf(stderr, "bench: experts in %s done\n", name.c_str());
    }
    if (out != stdout) {
        std::fclose(out);
    }
    ggml_backend_free(backend);
    if (wrong > 0) {
        std::fprintf(stderr, "bench: %d cases beyond nmse %.1e\n", wrong, NMSE_MAX);
    }
    return wrong > 0 ? 1 : 0;
}
