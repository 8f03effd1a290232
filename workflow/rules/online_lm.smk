rule online_lm:
    input:
        unpack(FLOW.inputs("online_lm")),
    output:
        f"{RESULTS}/cells/{{study}}/{{model}}/{{arm}}/{{group}}.jsonl",
    log:
        f"logs/{RUN}/online_lm/{{study}}/{{model}}/{{arm}}/{{group}}.log",
    wildcard_constraints:
        study="online_lm",
    priority: 0
    conda:
        "../../environment.yml"
    threads: FLOW.threads
    resources:
        mem_mb=FLOW.memory("online_lm"),
        gpu=FLOW.gpus(),
    params:
        spec=FLOW.specs("online_lm"),
        code=FLOW.codes("online_lm"),
        named=FLOW.named_inputs("online_lm"),
    shell:
        "kvatlas cell --spec {params.spec:q} --code {params.code} --threads {threads} --input {params.named:q} --output {output} > {log} 2>&1"
